"""FedProx (Li et al. 2020): a proximal term keeps clients near the round's start."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Batch, Local, Term, Terms


class Options(method.Options):
    mu: float = Field(
        0.01,
        ge=0,
        description="weight of the proximal term (follows the data set: 0.01; cifar100, tiny-imagenet 0.001)",
    )


class FedProx(FedAvg):
    """Adds (mu/2) |w - w^t|^2 over the parameters. Its gradient is added as such: parameters are no part of what the
    network computes.
    """

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a proximal term (Li et al. 2020)"
    family: ClassVar[str] = "client drift"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "squared_distance")

    def loss(self, batch: Batch, local: Local) -> Terms:
        def squared_distance() -> Tensor:
            length: Tensor = torch.linalg.vector_norm(local.weights.params.detach() - local.start.params, dim=-1)
            return length.square()

        return {**super().loss(batch, local), "squared_distance": Term(squared_distance, self.options.mu / 2)}

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        above = super().correct(gradient, local)
        return above.add(local.weights.params - local.start.params, alpha=self.options.mu)
