"""FedProx (Li et al. 2020): a proximal term keeps clients near the round's start."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedproc.methods import fedavg
from fedproc.methods.fedavg import FedAvg, Local


class Options(fedavg.Options):
    mu: float = Field(
        0.01,
        ge=0,
        description="weight of the proximal term (follows the data set: 0.01; cifar100, tiny-imagenet 0.001)",
    )


class FedProx(FedAvg):
    """Adds (mu/2) |w - w^t|^2 over the parameters, as its gradient."""

    name: ClassVar[str] = "fedprox"
    summary: ClassVar[str] = "FedAvg with a proximal term (Li et al. 2020)"
    options_type: ClassVar[type[fedavg.Options]] = Options
    options: Options

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        return gradient.add(local.weights.params - local.start.params, alpha=self.options.mu)
