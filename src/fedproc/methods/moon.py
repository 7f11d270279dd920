"""MOON (Li et al. 2021): model-contrastive learning between a client's z, the global model's and its own last one's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedproc.kernels.forks import side_by_side
from fedproc.methods import fedavg
from fedproc.methods.fedavg import Batch, FedAvg, Local, Tensors
from fedproc.networks.flat import Weights
from fedproc.prototypes import unit


class Options(fedavg.Options):
    mu: float = Field(
        5.0,
        ge=0,
        description="weight of the contrastive term (follows the data set: 5; cifar100 and tiny-imagenet 1; "
        "cifar100 with 50 or more clients 10)",
    )
    tau: float = Field(0.5, gt=0, description="temperature of the contrastive term")


class Moon(FedAvg):
    """Adds mu times -log softmax of [cos(z, z_global), cos(z, z_previous)]/tau at the first entry.

    Both other networks are frozen and in evaluation mode; without a previous model the term is 0.
    """

    name: ClassVar[str] = "moon"
    summary: ClassVar[str] = "model-contrastive term against the client's previous model (Li et al. 2021)"
    options_type: ClassVar[type[fedavg.Options]] = Options
    terms: ClassVar[tuple[str, ...]] = ("cross_entropy", "contrastive_loss")
    options: Options

    def loss(self, batch: Batch, local: Local) -> tuple[Tensor, Sequence[Tensor]]:
        cross_entropy = self.cross_entropy(batch, local)
        z = unit(batch.z)
        together, before = side_by_side(
            lambda: unit(batch.embed(local.start)), lambda: unit(batch.embed(Weights.of(local.kept)))
        )
        to_global, to_previous = (z * together).sum(dim=-1), (z * before).sum(dim=-1)
        samples = F.softplus((to_previous - to_global) / self.options.tau)  # -log softmax at the first of two
        term = batch.mean(samples)
        term = torch.where(local.kept["trained"], term, torch.zeros_like(term))
        return cross_entropy + self.options.mu * term, (cross_entropy, term)

    def keep_first(self, client: int, start: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        return {**start.tensors(), "trained": torch.zeros((), dtype=torch.bool, device=start.params.device)}

    def keep(self, local: Local) -> Tensors:
        return {**local.weights.tensors(), "trained": torch.ones_like(local.kept["trained"])}
