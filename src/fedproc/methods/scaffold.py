"""SCAFFOLD (Karimireddy et al. 2019): control variates take the clients' drift out of the gradient.

With momentum rho a client's tau steps move it by lr * a times a constant gradient, not lr * tau: its
control variate is the mean gradient only when the distance is divided by lr * a.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.merges import effective_steps
from fedproc.methods.method import Answer, Local, Shapes, Tensors, Weights


class Options(method.Options):
    uniform: bool = Field(
        False, description="the original's averages: 1/|S| for the weights and 1/m for the control variate"
    )


class Scaffold(FedAvg):
    """Adds (c - c_i) to the gradient before momentum; c_i+ = c_i - c + (w^t - w_i)/(lr a_i), parameters only."""

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "control variates against client drift (Karimireddy et al. 2019)"
    family: ClassVar[str] = "client drift"
    options_type: ClassVar[type[method.Options]] = Options
    additive: ClassVar[bool] = True
    options: Options

    @classmethod
    def needs_sgd(cls, options: method.Options) -> str | None:
        return super().needs_sgd(options) or "its control variates are the mean gradients that moves by SGD amount to"

    # the server's half

    def first_state(self, params: int) -> Tensors:
        return {**super().first_state(params), "control": torch.zeros(params, dtype=self.client.dtype)}

    def send(self, state: Tensors) -> Tensors:
        return {**super().send(state), "control": state["control"]}

    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        return [1 / len(samples)] * len(samples) if self.options.uniform else super().shares(samples)

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        above, sizes = super().collect(state, sums, answer), self.server.client_sizes
        share = answer.clients * (1 / len(sizes) if self.options.uniform else answer.samples / sum(sizes))
        control = sums["control"] if "control" in sums else state["control"].clone()
        return {**above, "control": control.add_(answer.tensors["control_change"], alpha=share)}

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        return {**super().receive(state, sums), "control": sums.get("control", state["control"])}

    # the client's half

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        return super().correct(gradient, local) + (local.sent["control"] - local.state["control"])

    def _new_control(self, local: Local) -> Tensor:
        moved = local.start.params - local.weights.params.detach()
        divisor = local.settings["lr"] * effective_steps(local.steps, self.client.momentum).to(moved.dtype)
        return local.state["control"] - local.sent["control"] + moved / divisor.unsqueeze(-1)

    def returns(self, params: int, dtype: torch.dtype) -> Shapes:
        return {**super().returns(params, dtype), "control_change": ((params,), dtype)}

    def averages(self) -> Sequence[str]:
        return (*super().averages(), "control_change")

    def reply(self, local: Local) -> Tensors:
        return {**super().reply(local), "control_change": self._new_control(local) - local.state["control"]}

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        return {**super().first_client_state(client, sent, fresh), "control": torch.zeros_like(sent.params)}

    def next_client_state(self, local: Local) -> Tensors:
        above = super().next_client_state(local)
        return {**above, "control": self._new_control(local)} if local.phase.returns else above
