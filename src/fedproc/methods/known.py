"""Losses whose slopes are known: the cross-entropy of a batch's own logits, the contrast of its own z with prototypes.

On a CPU core C kernels give the slopes, without autograd. Every other loss is left to autograd, and so are these where
there is more about them: other logits, samples that do not count. Shapes: B batch, K classes, Q features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedproc.kernels import cpu
from fedproc.methods.fedavg import CrossEntropy
from fedproc.methods.method import Batch, Term
from fedproc.prototypes import Contrast

Slopes = tuple[Tensor | None, Tensor | None]  # by z (B, Q) and by logits (B, K); None: 0


def slopes(terms: Sequence[Term], batch: Batch, sums: Tensor) -> Slopes | None:
    """The slopes of the terms' weighted sum, if all are known; what is minimised and each term's mean are added to sums
    (1 + terms,).
    """
    weights = [_weight(term) for term in terms]
    kinds = [_kind(term, batch) for term in terms]
    if None in weights or None in kinds or len(set(kinds)) < len(kinds):
        return None
    if batch.logits._backward_hooks:
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


def _kind(term: Term, batch: Batch) -> type | None:
    """Which known loss it is, if it is one."""
    values = term.values
    if batch.labels.dtype != torch.int64:
        known = False
    elif type(values) is CrossEntropy:
        known = values.labels is batch.labels and values.own is batch.logits
        known = known and cpu.offset_takes(values.offset, batch.logits[0])
    elif type(values) is Contrast:
        known = values.labels is batch.labels and values.z is batch.z
        own = (values.prototypes, values.known, values.offset)
        known = known and not isinstance(values.tau, Tensor) and cpu.contrast_takes(batch.z, batch.labels, *own)
    else:
        known = False
    return type(values) if known and term.counted is None else None


def _weight(term: Term) -> float | None:
    """As a number, if it is one."""
    weight = 1.0 if term.weight is None else term.weight
    if isinstance(weight, Tensor):
        plain = weight.dim() == 0 and weight.dtype == torch.float32 and not weight.requires_grad
        return weight.item() if plain else None
    return float(weight) if isinstance(weight, (int, float)) else None
