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

from fedproc.methods import fedavg
from fedproc.methods.fedavg import FedAvg, Local, Shapes, Tensors
from fedproc.methods.merges import effective_steps
from fedproc.networks.flat import Weights
from fedproc.payload import Payload


class Options(fedavg.Options):
    uniform: bool = Field(
        False, description="the original's averages: 1/|S| for the weights and 1/m for the control variate"
    )


class Scaffold(FedAvg):
    """Adds (c - c_i) to the gradient before momentum; c_i+ = c_i - c + (w^t - w_i)/(lr a_i), parameters only."""

    name: ClassVar[str] = "scaffold"
    summary: ClassVar[str] = "control variates against client drift (Karimireddy et al. 2019)"
    options_type: ClassVar[type[fedavg.Options]] = Options
    options: Options

    # the server's half

    def begin(self, params: int) -> Tensors:
        return {"control": torch.zeros(params, dtype=self.problem.dtype)}

    def send(self, kept: Tensors) -> Tensors:
        return {"control": kept["control"]}

    def shares(self, samples: Sequence[int]) -> list[float]:
        return [1 / len(samples)] * len(samples) if self.options.uniform else super().shares(samples)

    def receive(self, kept: Tensors, answers: Sequence[Payload]) -> Tensors:
        sizes = self.problem.client_sizes
        control = kept["control"].clone()
        for answer in answers:
            share = 1 / len(sizes) if self.options.uniform else answer.counts["samples"] / sum(sizes)
            control.add_(answer.tensors["control_change"], alpha=share)
        return {**kept, "control": control}

    # the client's half

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        return gradient + (local.sent["control"] - local.kept["control"])

    def _new_control(self, local: Local) -> Tensor:
        moved = local.start.params - local.weights.params.detach()
        divisor = local.settings["lr"] * effective_steps(local.steps, self.problem.momentum).to(moved.dtype)
        return local.kept["control"] - local.sent["control"] + moved / divisor.unsqueeze(-1)

    def returned(self, params: int, dtype: torch.dtype) -> Shapes:
        return {"control_change": ((params,), dtype)}

    def answer(self, local: Local) -> Tensors:
        return {"control_change": self._new_control(local) - local.kept["control"]}

    def keep_first(self, client: int, start: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        return {"control": torch.zeros_like(start.params)}

    def keep(self, local: Local) -> Tensors:
        return {"control": self._new_control(local)}
