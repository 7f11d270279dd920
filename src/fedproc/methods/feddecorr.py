"""FedDecorr (Shi et al. 2023): features of a batch are kept from being copies of each other."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Batch, Local, Term, Terms


class Options(method.Options):
    beta: float = Field(
        0.1,
        ge=0,
        description="weight of the decorrelation, on the scale of the authors' code "
        "(follows the data set: 0.1; cifar100, tiny-imagenet 0.05)",
    )


class FedDecorr(FedAvg):
    """Adds beta R(z): (B - 1)^2/B times the mean square of the correlations of different features in the batch."""

    name: ClassVar[str] = "feddecorr"
    summary: ClassVar[str] = "correlations between features are penalised (Shi et al. 2023)"
    family: ClassVar[str] = "representation"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "decorrelation")

    def loss(self, batch: Batch, local: Local) -> Terms:
        term = Term(lambda: decorrelation(batch.z, batch.mask), self.options.beta)
        return {**super().loss(batch, local), "decorrelation": term}


def decorrelation(z: Tensor, mask: Tensor | None) -> Tensor:
    """R (...,) of z (..., B, Q), of which the samples in the mask (..., B) count; 0 of a single sample.

    The squared entries of Z'Z (Q, Q) add up to those of ZZ' (B, B), which is the smaller one.
    """
    features = z.shape[-1]
    there = torch.ones_like(z[..., :1]) if mask is None else mask.unsqueeze(-1).to(z.dtype)
    if mask is not None:
        z = torch.where(mask.unsqueeze(-1), z, torch.zeros_like(z))
    count = there.sum(dim=-2, keepdim=True)
    centred = (z - z.sum(dim=-2, keepdim=True) / count.clamp(min=1)) * there
    variance = centred.square().sum(dim=-2, keepdim=True) / (count - 1).clamp(min=1)
    standard = centred / (variance + 1e-8).sqrt()
    everything = (standard @ standard.transpose(-1, -2)).square().sum(dim=(-2, -1))
    diagonal = standard.square().sum(dim=-2).square().sum(dim=-1)
    pairs = max(features * (features - 1), 1)
    return (everything - diagonal) / (pairs * count[..., 0, 0].clamp(min=1))
