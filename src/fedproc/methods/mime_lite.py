"""Mime-lite (Karimireddy et al. 2020): clients step with the server's momentum, which stands still while they train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Answer, Local, Phase, Shapes, Tensors, Weights

GRADIENT = "gradient"  # the phase that takes it


class Options(method.Options):
    beta: float = Field(0.9, ge=0, lt=1, description="the share of the server's momentum in each local step")


class MimeLite(FedAvg):
    """A local step goes along (1 - beta) g + beta s. The server's s is the same for all and frozen during a round, and
    then moves to beta s + (1 - beta) g^t, where g^t is the mean of the clients' gradients over their data at w^t.
    """

    name: ClassVar[str] = "mime-lite"
    summary: ClassVar[str] = "the server's momentum in every local step (Karimireddy et al. 2020)"
    family: ClassVar[str] = "client drift"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    @classmethod
    def needs_sgd(cls, options: method.Options) -> str | None:
        return super().needs_sgd(options) or "its local step is that of SGD with the server's momentum"

    # the server's half

    def phases(self, t: int) -> tuple[Phase, ...]:
        return (Phase(1, GRADIENT, trains="nothing", returns=False), *super().phases(t))

    def first_state(self, params: int) -> Tensors:
        return {**super().first_state(params), "momentum": torch.zeros(params, dtype=self.client.dtype)}

    def send(self, state: Tensors) -> Tensors:
        return {**super().send(state), "momentum": state["momentum"]}

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        above, gradient = super().collect(state, sums, answer), answer.tensors["gradient"]
        total = sums["gradient"] if "gradient" in sums else torch.zeros_like(gradient, dtype=torch.float64)
        share = sums["share"] if "share" in sums else total.new_zeros(())
        return {**above, "gradient": total.add(gradient, alpha=answer.share), "share": share + answer.share}

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        above = super().receive(state, sums)
        if "gradient" not in sums:
            return above
        beta, mean = self.options.beta, sums["gradient"] / sums["share"]
        return {**above, "momentum": beta * state["momentum"] + (1 - beta) * mean.to(state["momentum"])}

    # the client's half

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        above, beta = super().correct(gradient, local), self.options.beta
        if local.phase.name == GRADIENT:
            return above
        step = (1 - beta) * above + beta * local.sent["momentum"]
        # the optimizer adds its own momentum times the last step: taken out here, there is the server's alone
        return step - self.client.momentum * local.velocity

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        return {**super().first_client_state(client, sent, fresh), "gradient": torch.zeros_like(sent.params)}

    def next_client_state(self, local: Local) -> Tensors:
        above = super().next_client_state(local)
        if local.phase.name != GRADIENT:
            return above
        return {**above, "gradient": local.velocity / local.steps.unsqueeze(-1)}

    def returns(self, params: int, dtype: torch.dtype) -> Shapes:
        return {**super().returns(params, dtype), "gradient": ((params,), dtype)}

    def averages(self) -> Sequence[str]:
        return (*super().averages(), "gradient")

    def reply(self, local: Local) -> Tensors:
        return {**super().reply(local), "gradient": local.state["gradient"]}
