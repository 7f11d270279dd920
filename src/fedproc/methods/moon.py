"""MOON (Li et al. 2021): model-contrastive learning between a client's z, the global model's and its own last one's."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field

from fedproc.kernels.forks import side_by_side
from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Batch, Local, Term, Terms
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import Weights
from fedproc.prototypes import unit


class Options(method.Options):
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
    family: ClassVar[str] = "representation"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "contrastive_loss")

    def loss(self, batch: Batch, local: Local) -> Terms:
        z, previous = unit(batch.z), {name: local.state[f"previous_{name}"] for name in local.start.tensors()}
        together, before = side_by_side(
            lambda: unit(batch.frozen(local.start)[0]), lambda: unit(batch.frozen(Weights.of(previous))[0])
        )
        to_global, to_previous = (z * together).sum(dim=-1), (z * before).sum(dim=-1)
        samples = F.softplus((to_previous - to_global) / self.options.tau)  # -log softmax at the first of two
        mean = batch.mean(samples)
        mean = torch.where(local.state["has_previous"], mean, torch.zeros_like(mean))
        return {**super().loss(batch, local), "contrastive_loss": Term(mean, self.options.mu)}

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        none = torch.zeros((), dtype=torch.bool, device=sent.params.device)
        previous = {f"previous_{name}": tensor for name, tensor in sent.tensors().items()}
        return {**super().first_client_state(client, sent, fresh), **previous, "has_previous": none}

    def next_client_state(self, local: Local) -> Tensors:
        if not local.phase.returns:
            return super().next_client_state(local)
        previous = {f"previous_{name}": tensor for name, tensor in local.weights.tensors().items()}
        one = torch.ones_like(local.state["has_previous"])
        return {**super().next_client_state(local), **previous, "has_previous": one}
