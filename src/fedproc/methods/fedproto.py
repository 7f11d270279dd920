"""FedProto (Tan et al. 2022): z is pulled to the global prototype of its class, by distance."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import fedproc, method
from fedproc.methods.fedproc import AveragesMeans
from fedproc.methods.method import Batch, Local, TensorInfo, Term, Terms


class Options(fedproc.MeansOptions):
    weight: float = Field(1.0, ge=0, description="lambda, of the pull to the prototypes")
    models: Literal["shared", "personal"] = Field(
        "shared", description="weights are averaged as in FedAvg, or, as in the paper, stay at each client"
    )
    start: Literal["data", "zeros", "random"] = Field(
        "zeros", description="c0: zeros (no class known: a first round without pull), a pass over all data, or random"
    )


class FedProto(AveragesMeans):
    """Adds lambda times the mean over features of (z - c_y)^2, 0 where class y has no prototype yet."""

    name: ClassVar[str] = "fedproto"
    summary: ClassVar[str] = "z pulled to the global class means by distance (Tan et al. 2022)"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def personal(self, tensor: TensorInfo) -> bool:
        return self.options.models == "personal" or super().personal(tensor)

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "prototype_distance")

    def loss(self, batch: Batch, local: Local) -> Terms:
        def distance() -> Tensor:
            return squared_distances(batch.z, batch.labels, local.sent["prototypes"], local.sent["known"])[0]

        return {**super().loss(batch, local), "prototype_distance": Term(distance, self.options.weight)}


def squared_distances(z: Tensor, labels: Tensor, c: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over features of (z - c_y)^2 (..., B) of each sample, 0 where c_y is not known, and where it is."""
    own = c.gather(-2, labels.unsqueeze(-1).expand(*labels.shape, c.shape[-1]))
    there = known.gather(-1, labels)
    return torch.where(there, (z - own).square().mean(dim=-1), torch.zeros_like(z[..., 0])), there
