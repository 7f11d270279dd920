"""Class prototypes: the prototype loss (Eq. 4 of the paper), class means (Eq. 5), their merge over
clients, and classification by the nearest prototype.

Shapes: ... lanes, B samples, K classes, Q features. Everything acts on the trailing axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Weighting = Literal["uniform", "count"]


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1; a zero vector stays zero and passes no gradient, since it is divided by infinity.

    Lengths are added up in float64, where squares of float32 neither over- nor underflow. Non-finite
    entries go through.
    """
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
    zero = length < torch.finfo(vectors.dtype).tiny
    return vectors / length.masked_fill(zero, torch.inf).to(vectors.dtype)


def similarities(z: Tensor, prototypes: Tensor) -> Tensor:
    """Cosines (..., B, K) of z (..., B, Q) with prototypes (..., K, Q), through which no gradient flows."""
    return unit(z) @ unit(prototypes.detach()).transpose(-1, -2)


def contrast(
    z: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    tau: float | Tensor,
    known: Tensor,
    offset: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`prototype_loss` for prototypes that the payload guard has already found finite, and whether each sample counts:
    its class is known. None may stand for all of them.

    `offset` (..., K) is added to the similarities/tau: the calibration by a client's own class shares. A tau that is a
    tensor fits (..., B, K); gradients may flow through it and through the offset.
    """
    from fedproc import kernels
    from fedproc.kernels import cpu

    if isinstance(tau, Tensor) or (offset is not None and offset.requires_grad):
        return contrast_by_torch(z, labels, prototypes, tau, known, offset)
    if kernels.usable(z) and kernels.usable(prototypes):
        from fedproc.kernels.losses import contrast_takes, contrasts

        if contrast_takes(prototypes):
            return contrasts(z, labels, prototypes, tau, known, offset)
    if cpu.contrast_takes(z, labels, prototypes, known, offset) and cpu.usable(z):
        return cpu.contrasts(z, labels, prototypes, tau, known, offset, contrast_by_torch)
    return contrast_by_torch(z, labels, prototypes, tau, known, offset)


def contrast_by_torch(
    z: Tensor, labels: Tensor, prototypes: Tensor, tau: float | Tensor, known: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    cosines = similarities(z, prototypes) / tau
    if offset is not None:
        cosines = cosines + offset.unsqueeze(-2)
    out = torch.finfo(cosines.dtype).min / 2  # finite, so that no class at all gives 0 and not NaN
    among_known = cosines.masked_fill(~known.unsqueeze(-2), out)
    losses = F.cross_entropy(among_known.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    counted = known.gather(-1, labels)
    return torch.where(counted, losses, torch.zeros_like(losses)), counted


@dataclass(frozen=True)
class Contrast:
    """The values of a term that is a contrast; of the batch's own z its slope is known (methods/known.py)."""

    z: Tensor
    labels: Tensor
    prototypes: Tensor
    tau: float | Tensor
    known: Tensor
    offset: Tensor | None = None

    def __call__(self) -> tuple[Tensor, Tensor | None]:
        return contrast(self.z, self.labels, self.prototypes, self.tau, self.known, self.offset)


def prototype_loss(
    z: Tensor, labels: Tensor, prototypes: Tensor, tau: float = 1.0, known: Tensor | None = None
) -> Tensor:
    """Cross-entropy (..., B) of the softmax over cosines with the prototypes, 0 where the class is unknown.

    `known` (..., K) says which classes have a prototype; the others are out of the denominator. The mean
    that training minimises is over the samples whose class is known.
    """
    if known is None:
        known = torch.ones(prototypes.shape[:-1], dtype=torch.bool, device=prototypes.device)
    if tau <= 0:
        raise ValueError(f"tau {tau}: expected a number above 0")
    if not bool(torch.isfinite(prototypes[known]).all()):
        raise ValueError("prototypes: expected finite values, got nan or inf in a known class")
    known = known.expand(*labels.shape[:-1], known.shape[-1])
    return contrast(z, labels, prototypes, tau, known)[0]


def class_sums(z: Tensor, labels: Tensor, classes: int, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sums (..., K, Q) of z by class in float64 and the counts (..., K); masked-out samples count nowhere.

    A product with the one-hot labels, since scattered additions are not deterministic on a GPU.
    """
    from fedproc.kernels import cpu

    fits = z.dim() == 2 and labels.shape == z.shape[:1] and labels.dtype == torch.int64
    fits = fits and (mask is None or (mask.shape == labels.shape and mask.dtype == torch.bool))
    if fits and not z.requires_grad and cpu.usable(z):
        return cpu.class_sums(z, labels, classes, mask)
    members = labels.unsqueeze(-2) == torch.arange(classes, device=labels.device).unsqueeze(-1)
    if mask is not None:
        members = members & mask.unsqueeze(-2)
        z = torch.where(mask.unsqueeze(-1), z, torch.zeros_like(z))  # what is padded may be nan, and 0 * nan is nan
    return members.to(torch.float64) @ z.to(torch.float64), members.sum(dim=-1)


def class_means(sums: Tensor, counts: Tensor) -> Tensor:
    """Means (..., K, Q), zero for a class without samples."""
    return sums / counts.clamp(min=1).unsqueeze(-1)


Sums = tuple[Tensor, Tensor]  # of class means (K, Q) times their weights, and of the weights (K,), in float64


def add_means(sums: Sums | None, means: Tensor, counts: Tensor, weighting: Weighting) -> Sums:
    """One more client's means (K, Q) and counts (K): `uniform` averages over the clients that hold a class, `count`
    weighs them by how many samples of it they hold.
    """
    weight = (counts > 0 if weighting == "uniform" else counts).to(torch.float64)
    total = weight.unsqueeze(-1) * means.to(torch.float64)
    return (total, weight) if sums is None else (sums[0] + total, sums[1] + weight)


def from_sums(sums: Sums, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One prototype per class (K, Q), zero for classes that nobody holds, and which somebody does (K,)."""
    total, weight = sums
    held = weight > 0
    return (total / torch.where(held, weight, torch.ones_like(weight)).unsqueeze(-1)).to(dtype), held


def nearest(z: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """The class (..., B) whose prototype has the largest cosine with z, among the known ones; -1 where none is."""
    cosines = similarities(z, prototypes).masked_fill(~known.unsqueeze(-2), -torch.inf)
    return torch.where(known.any(dim=-1, keepdim=True), cosines.argmax(dim=-1), -1)
