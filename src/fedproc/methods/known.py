"""Losses whose slopes are known: the cross-entropy of a batch's own logits, the contrast of its own z with prototypes.

C kernels give a client's slopes on a CPU core, Triton kernels those of many clients on a GPU, without autograd. Every
other loss is left to autograd, and so are these where there is more about them: other logits, samples that do not
count. Shapes: L lanes, B batch, K classes, Q features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedproc import kernels
from fedproc.kernels import cpu
from fedproc.kernels.forks import at_once
from fedproc.methods.fedavg import CrossEntropy
from fedproc.methods.method import Batch, Term
from fedproc.prototypes import Contrast

if TYPE_CHECKING:
    from fedproc.kernels.losses import Share

Slopes = tuple[Tensor | None, Tensor | None]  # by z (B, Q) and by logits (B, K); None: 0


def slopes(terms: Sequence[Term], batch: Batch, sums: Tensor) -> Slopes | None:
    """The slopes of the terms' weighted sum, if all are known; what is minimised and each term's mean are added to sums
    (1 + terms,).
    """
    weights = [_weight(term) for term in terms]
    if None in weights or not _all_known(terms, batch):
        return None
    by_z: Tensor | None = None
    by_logits: Tensor | None = None
    for place, (term, weight) in enumerate(zip(terms, weights, strict=True), start=1):
        values = term.values
        assert weight is not None
        if isinstance(values, CrossEntropy):
            by_logits = cpu.cross_entropy_mean(batch.logits, batch.labels, values.offset, weight, sums, place)
        elif isinstance(values, Contrast):
            assert not isinstance(values.tau, Tensor)
            own = (values.prototypes, values.tau, values.known, values.offset)
            by_z = cpu.contrast_mean(batch.z, batch.labels, *own, weight, sums, place)
    return by_z, by_logits


def slopes_of_lanes(terms: Sequence[Term], batch: Batch, by_z: Tensor, by_logits: Tensor) -> list[Share] | None:
    """The same of lanes side by side on a GPU, written where they are wanted, (L, B, Q) and (L, B, K); what there is to
    note of each term, in order. What no term depends on is left as it is.
    """
    if not kernels.usable(batch.z) or not all(_weighs_lanes(term, batch) for term in terms):
        return None
    if not _all_known(terms, batch):
        return None
    parts = [partial(_of_lanes, term, batch, by_z, by_logits) for term in terms]
    return at_once(parts[::-1])[::-1]  # cross-entropy, most often the first, stays on the main stream


def _of_lanes(term: Term, batch: Batch, by_z: Tensor, by_logits: Tensor) -> Share:
    from fedproc.kernels import losses

    values, weight = term.values, term.weight
    if isinstance(weight, (int, float)):
        weight = torch.full(batch.labels.shape[:1], float(weight), device=batch.z.device)
    if isinstance(values, CrossEntropy):
        return losses.cross_entropy_slopes(
            batch.logits.detach(), batch.labels, values.offset, batch.mask, weight, by_logits
        )
    assert isinstance(values, Contrast) and not isinstance(values.tau, Tensor)
    own = (values.prototypes.detach(), values.tau, values.known, values.offset)
    return losses.contrast_slopes(batch.z.detach(), batch.labels, *own, batch.mask, weight, by_z)


def depends_on_z(terms: Sequence[Term]) -> bool:
    """Whether one of these known terms is of z itself and not of the logits."""
    return any(isinstance(term.values, Contrast) for term in terms)


def _all_known(terms: Sequence[Term], batch: Batch) -> bool:
    """Whether all terms are known losses, each another one, and the logits' slope is nobody else's business."""
    kinds = [_kind(term, batch) for term in terms]
    return None not in kinds and len(set(kinds)) == len(kinds) and not batch.logits._backward_hooks


def _kind(term: Term, batch: Batch) -> type | None:
    """Which known loss it is, if it is one."""
    values = term.values
    if batch.labels.dtype != torch.int64:
        known = False
    elif type(values) is CrossEntropy:
        known = values.labels is batch.labels and values.own is batch.logits
        known = known and cpu.offset_takes(values.offset, batch.logits.select(-2, 0))
    elif type(values) is Contrast:
        known = values.labels is batch.labels and values.z is batch.z
        known = known and not isinstance(values.tau, Tensor) and _takes(values, batch)
    else:
        known = False
    return type(values) if known and term.counted is None else None


def _takes(values: Contrast, batch: Batch) -> bool:
    """Whether the prototypes and what belongs to them are as kernels read them."""
    own = (values.prototypes, values.known, values.offset)
    if batch.labels.dim() == 1:
        return cpu.contrast_takes(batch.z, batch.labels, *own)
    from fedproc.kernels.losses import contrast_takes

    shape, z = values.prototypes.shape, batch.z
    fits = len(shape) == 3 and (shape[0], shape[2]) == (z.shape[0], z.shape[2]) and contrast_takes(values.prototypes)
    fits = fits and values.prototypes.dtype == torch.float32 and values.known.dtype == torch.bool
    return fits and values.known.shape == shape[:2] and cpu.offset_takes(values.offset, values.known)


def _weighs_lanes(term: Term, batch: Batch) -> bool:
    """Whether the weight is one number for all lanes, or one for each."""
    weight = term.weight
    if not isinstance(weight, Tensor):
        return weight is None or isinstance(weight, (int, float))
    return weight.shape == batch.labels.shape[:1] and weight.dtype == torch.float32 and not weight.requires_grad


def _weight(term: Term) -> float | None:
    """As a number, if it is one."""
    weight = 1.0 if term.weight is None else term.weight
    if isinstance(weight, Tensor):
        plain = weight.dim() == 0 and weight.dtype == torch.float32 and not weight.requires_grad
        return weight.item() if plain else None
    return float(weight) if isinstance(weight, (int, float)) else None
