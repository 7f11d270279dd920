"""Losses per sample, with their gradients from the same pass: cross-entropy, and contrast with class prototypes.

As `slopes` they are ready for the way back: each lane's mean over its samples, times a weight, needs no autograd.
Shapes: L lanes, B batch, K classes, Q features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedproc.kernels import arithmetic, ceil_div, power_of_two
from fedproc.kernels.conv_pool import _product

MOST_TERMS = 4  # of a loss, with their sum
MOST_CLASSES = 32  # of the contrast: its prototypes are held in registers


@triton.jit
def _share(lane, mask, labels, known, B, K, MASK: tl.constexpr, KNOWN: tl.constexpr, BLOCK: tl.constexpr):
    """What one of a lane's samples is of the mean: those of the mask, and of those the ones whose class is known."""
    b = tl.arange(0, BLOCK)
    keep = b < B
    if MASK:
        keep = keep & (tl.load(mask + lane * B + b, b < B, 0) != 0)
    if KNOWN:
        label = tl.load(labels + lane * B + b, b < B, 0)
        keep = keep & (tl.load(known + lane * K + label, keep, 0) != 0)
    return 1.0 / tl.maximum(tl.sum(keep.to(tl.float32), axis=0), 1.0)


@triton.jit(do_not_specialize=["B"])
def _cross_entropy(
    logits, labels, offset, mask, weight, loss, slope, B, K,
    SHARED: tl.constexpr, OFFSET: tl.constexpr, MASK: tl.constexpr, WEIGHT: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    keep = m < B
    row = lane * B + m
    ok = keep[:, None] & (k < K)[None, :]
    at = row[:, None] * K + k[None, :]
    values = tl.load(logits + at, ok, float("-inf")).to(tl.float32)
    if OFFSET:
        values += tl.load(offset + lane * K + k, k < K, 0.0)[None, :]
    label = tl.load(labels + row, keep, 0)
    top = tl.max(values, axis=1)
    powers = tl.exp(values - top[:, None])
    total = tl.sum(powers, axis=1)
    hit = k[None, :] == label[:, None]
    own = tl.sum(tl.where(hit, values, 0.0), axis=1)
    losses = tl.log(total) + top - own
    slopes = powers / total[:, None] - tl.where(hit, 1.0, 0.0)
    if SHARED:
        share = _share(lane, mask, labels, mask, B, K, MASK, False, BLOCK)
        there = keep
        if MASK:
            there = there & (tl.load(mask + row, keep, 0) != 0)
        factor = share
        if WEIGHT:
            factor *= tl.load(weight + lane)
        losses = tl.where(there, losses * share, 0.0)
        slopes = tl.where(factor == 0.0, 0.0, tl.where(there[:, None], slopes * factor, 0.0))
    tl.store(loss + row, losses, keep)
    tl.store(slope + at, slopes, ok)


@triton.jit
def _unit(vectors):
    """Vectors of length 1 (zero stays zero) and their lengths; scaled first, so that squares do not overflow."""
    largest = tl.max(tl.abs(vectors), axis=1)
    scale = tl.where(largest > 0, largest, 1.0)
    scaled = vectors / scale[:, None]
    length = tl.sqrt(tl.sum(scaled * scaled, axis=1))
    safe = tl.where(length > 0, length, 1.0)
    return scaled / safe[:, None], scale * length


@triton.jit(do_not_specialize=["B"])
def _contrast(
    z, labels, prototypes, known, offset, mask, weight, loss, counted, slope, inverse_tau, B, K,
    Q: tl.constexpr, SHARED: tl.constexpr, OFFSET: tl.constexpr, MASK: tl.constexpr, WEIGHT: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BLOCK: tl.constexpr, SHORT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    q = tl.arange(0, Q)
    row = lane * B + m
    at = row[:, None] * Q + q[None, :]
    u, length = _unit(tl.load(z + at, (m < B)[:, None], 0.0).to(tl.float32))
    p, _ = _unit(tl.load(prototypes + (lane * K + k)[:, None] * Q + q[None, :], (k < K)[:, None], 0.0))
    cosines = _product(u, tl.trans(p), tl.zeros((BM, BK), tl.float32), SHORT, PRODUCT)
    scores = cosines * inverse_tau
    if OFFSET:
        scores += tl.load(offset + lane * K + k, k < K, 0.0)[None, :]
    there = tl.load(known + lane * K + k, k < K, 0) != 0
    scores = tl.where(there[None, :], scores, -1e30)
    label = tl.load(labels + row, m < B, 0)
    hit = k[None, :] == label[:, None]
    counts = tl.sum(tl.where(hit & there[None, :], 1.0, 0.0), axis=1) > 0
    top = tl.max(scores, axis=1)
    powers = tl.exp(scores - top[:, None])
    total = tl.sum(powers, axis=1)
    own = tl.sum(tl.where(hit, scores, 0.0), axis=1)
    losses = tl.log(total) + top - own
    if SHARED:
        share = _share(lane, mask, labels, known, B, K, MASK, True, BLOCK)
        losses *= share
        if MASK:
            counts = counts & (tl.load(mask + row, m < B, 0) != 0)
    else:
        tl.store(counted + row, counts.to(tl.uint8), m < B)
    tl.store(loss + row, tl.where(counts, losses, 0.0), m < B)
    d = (powers / total[:, None] - tl.where(hit, 1.0, 0.0)) * inverse_tau
    along = tl.sum(d * cosines, axis=1)
    turn = _product(d, p, tl.zeros((BM, Q), tl.float32), SHORT, PRODUCT) - along[:, None] * u
    safe = tl.where(length > 0, length, 1.0)
    slopes = turn / safe[:, None]
    keep = counts & (length != 0)
    if SHARED:
        factor = share
        if WEIGHT:
            factor *= tl.load(weight + lane)
        slopes = tl.where(factor == 0.0, 0.0, slopes * factor)
    tl.store(slope + at, tl.where(keep[:, None], slopes, 0.0), (m < B)[:, None])


@triton.jit(do_not_specialize=["B"])
def _mean(
    values, mask, counted, weight, mean, weighted, share, B,
    MASK: tl.constexpr, COUNTED: tl.constexpr, WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BLOCK)
    keep = b < B
    if MASK:
        keep = keep & (tl.load(mask + row * B + b, b < B, 0) != 0)
    if COUNTED:
        keep = keep & (tl.load(counted + row * B + b, b < B, 0) != 0)
    count = tl.maximum(tl.sum(keep.to(tl.float32), axis=0), 1.0)
    total = tl.sum(tl.where(keep, tl.load(values + row * B + b, b < B, 0.0), 0.0), axis=0)
    tl.store(mean + row, total / count)
    factor = 1.0 / count
    if WEIGHT:
        factor *= tl.load(weight + row)
        tl.store(weighted + row, tl.where(factor == 0.0, 0.0, total * factor))  # 0 times infinity is no loss
    tl.store(share + row * B + b, tl.where(keep, factor, 0.0), b < B)


@triton.jit
def _note(
    sums, count, active, first, second, third, fourth, L,
    TERMS: tl.constexpr, ACTIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    on = lane < L
    if ACTIVE:
        on = on & (tl.load(active + lane, on, 0) != 0)
    tl.store(count + lane, tl.load(count + lane, on, 0.0) + 1.0, on)
    at = sums + lane * TERMS
    tl.store(at, tl.load(at, on, 0.0) + tl.load(first + lane, on, 0.0).to(tl.float64), on)
    if TERMS > 1:
        tl.store(at + 1, tl.load(at + 1, on, 0.0) + tl.load(second + lane, on, 0.0).to(tl.float64), on)
    if TERMS > 2:
        tl.store(at + 2, tl.load(at + 2, on, 0.0) + tl.load(third + lane, on, 0.0).to(tl.float64), on)
    if TERMS > 3:
        tl.store(at + 3, tl.load(at + 3, on, 0.0) + tl.load(fourth + lane, on, 0.0).to(tl.float64), on)


@triton.jit(do_not_specialize=["B"])
def _note_shares(
    sums, count, active, first, second, weight1, weight2, B,
    TERMS: tl.constexpr, WEIGHT1: tl.constexpr, WEIGHT2: tl.constexpr, ACTIVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BLOCK)
    there = b < B
    on = lane >= 0
    if ACTIVE:
        on = tl.load(active + lane) != 0
    at = sums + lane * (TERMS + 1)
    mean = tl.sum(tl.load(first + lane * B + b, there, 0.0), axis=0)
    total = mean
    if WEIGHT1:
        weight = tl.load(weight1 + lane)
        total = tl.where(weight == 0.0, 0.0, weight * mean)  # 0 times infinity is no loss
    tl.store(at + 1, tl.load(at + 1) + mean.to(tl.float64), on)
    if TERMS > 1:
        mean = tl.sum(tl.load(second + lane * B + b, there, 0.0), axis=0)
        more = mean
        if WEIGHT2:
            weight = tl.load(weight2 + lane)
            more = tl.where(weight == 0.0, 0.0, weight * mean)
        total += more
        tl.store(at + 2, tl.load(at + 2) + mean.to(tl.float64), on)
    tl.store(at, tl.load(at) + total.to(tl.float64), on)
    tl.store(count + lane, tl.load(count + lane) + 1.0, on)


Share = tuple[Tensor, Tensor | None]  # what each sample (L, B) is of a term's mean, and the term's weight (L,)


def note_shares(sums: Tensor, count: Tensor, active: Tensor | None, terms: Sequence[Share]) -> None:
    """Add what is minimised and the means of one or two terms to the active lanes' sums (L, 1 + terms), 1 to their
    count (L,).
    """
    shares, weights = [share for share, _ in terms], [weight for _, weight in terms]
    lanes, batch = shares[0].shape
    given = [count if weight is None else weight.contiguous() for weight in weights]
    _note_shares[(lanes,)](
        sums, count, count if active is None else active.view(torch.uint8), shares[0], shares[-1], given[0], given[-1],
        batch, TERMS=len(terms), WEIGHT1=weights[0] is not None, WEIGHT2=weights[-1] is not None,
        ACTIVE=active is not None, BLOCK=power_of_two(batch), num_warps=1,
    )  # fmt: skip


def note(sums: Tensor, count: Tensor, active: Tensor | None, losses: Sequence[Tensor]) -> None:
    """Add the losses (...,) of the active lanes to their sums (..., N) and 1 to their count (...,); N is at most 4."""
    flat = [loss.detach().contiguous() for loss in losses]
    filled = flat + flat[:1] * (MOST_TERMS - len(flat))
    lanes = count.numel()
    _note[(ceil_div(lanes, 128),)](
        sums, count, count if active is None else active.view(torch.uint8), *filled, lanes,
        TERMS=len(flat), ACTIVE=active is not None, BLOCK=128, num_warps=1,
    )  # fmt: skip


class Mean(torch.autograd.Function):
    """`weighted_mean` with its gradient; without a weight, the mean comes first."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, mask: Tensor | None, counted: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor] | Tensor:
        values = values.contiguous()
        batch = values.shape[-1]
        found = torch.empty(values.shape[:-1], dtype=torch.float32, device=values.device)
        weighted = found if weight is None else torch.empty_like(found)
        share = torch.empty_like(values)
        bytes_of = [values if t is None else t.contiguous().view(torch.uint8) for t in (mask, counted)]
        _mean[(found.numel(),)](
            values, *bytes_of, values if weight is None else weight.contiguous(), found, weighted, share, batch,
            MASK=mask is not None, COUNTED=counted is not None, WEIGHT=weight is not None, BLOCK=power_of_two(batch),
            num_warps=1,
        )  # fmt: skip
        ctx.save_for_backward(share)
        if weight is None:
            return found
        ctx.mark_non_differentiable(found)
        ctx.set_materialize_grads(False)
        return weighted, found

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: None) -> tuple[Tensor, None, None, None]:
        return ctx.saved_tensors[0] * g.unsqueeze(-1), None, None, None


def mean(values: Tensor, mask: Tensor | None, counted: Tensor | None) -> Tensor:
    """The mean (...) of values (..., B) over those in `mask` and `counted`; 0 of none."""
    found: Tensor = Mean.apply(values, mask, counted, None)
    return found


def weighted_mean(values: Tensor, mask: Tensor | None, counted: Tensor | None, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The mean times a weight (...), 0 where that is 0; and the mean, through which no gradient flows."""
    found: tuple[Tensor, Tensor] = Mean.apply(values, mask, counted, weight)
    return found


class CrossEntropy(torch.autograd.Function):
    """`cross_entropies` with its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        slope = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        loss = _cross_entropies(logits.contiguous(), labels.contiguous(), slope, labels.numel())
        ctx.save_for_backward(slope)
        return loss

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0] * g.unsqueeze(-1), None


def _cross_entropies(
    logits: Tensor, labels: Tensor, slope: Tensor, batch: int, shared: bool = False, offset: Tensor | None = None,
    mask: Tensor | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Losses, and the slopes into their place; `shared`: both as parts of each lane's mean over its batch."""
    loss = torch.empty(labels.shape, dtype=torch.float32, device=logits.device)
    block = power_of_two(logits.shape[-1])
    tall = max(1, 256 // block)  # short blocks: a step's few rows are spread over many processors
    _cross_entropy[(ceil_div(batch, tall), labels.numel() // batch)](
        logits, labels, *_or_any(loss, offset, mask, weight), loss, slope, batch, logits.shape[-1],
        SHARED=shared, OFFSET=offset is not None, MASK=mask is not None, WEIGHT=weight is not None,
        BM=tall, BK=block, BLOCK=power_of_two(batch) if shared else 16, num_warps=2,
    )  # fmt: skip
    return loss


def _or_any(some: Tensor, offset: Tensor | None, mask: Tensor | None, weight: Tensor | None) -> list[Tensor]:
    """What a kernel is given where these may be missing; truth values as bytes."""
    found = [some if each is None else each.contiguous() for each in (offset, mask, weight)]
    return [each.view(torch.uint8) if each.dtype == torch.bool else each for each in found]


def cross_entropy_slopes(
    logits: Tensor, labels: Tensor, offset: Tensor | None, mask: Tensor | None, weight: Tensor | None, slope: Tensor
) -> Share:
    """Of each lane's mean cross-entropy of logits (L, B, K), plus an offset (L, K), over its mask (L, B), times a
    weight (L,): the slopes, written where they are wanted (L, B, K), and what there is to note.
    """
    return _cross_entropies(
        logits.contiguous(), labels.contiguous(), slope, labels.shape[-1], True, offset, mask, weight
    ), weight  # fmt: skip


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Losses (...) of logits (..., K) and labels (...)."""
    losses: Tensor = CrossEntropy.apply(logits, labels)
    return losses


def contrast_takes(prototypes: Tensor) -> bool:
    """Whether the kernel holds as many prototypes of this size."""
    classes, features = prototypes.shape[-2:]
    return classes <= MOST_CLASSES and features & (features - 1) == 0 and 16 <= features <= 512


class Contrast(torch.autograd.Function):
    """`contrasts` with its gradient."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, labels: Tensor, prototypes: Tensor, tau: float, known: Tensor, offset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        slope = torch.empty(z.shape, dtype=torch.float32, device=z.device)
        counted = torch.empty(labels.shape, dtype=torch.bool, device=z.device)
        loss = _contrasts(z.contiguous(), labels.contiguous(), prototypes, tau, known, offset, counted, slope)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(counted)
        ctx.set_materialize_grads(False)
        return loss, counted

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: None) -> tuple[Tensor, None, None, None, None, None]:
        return ctx.saved_tensors[0] * g.unsqueeze(-1), None, None, None, None, None


def _contrasts(
    z: Tensor, labels: Tensor, prototypes: Tensor, tau: float, known: Tensor, offset: Tensor | None,
    counted: Tensor | None, slope: Tensor, mask: Tensor | None = None, weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Losses, with the slopes and which samples count into their places; without such a place for these, both are parts
    of each lane's mean.
    """
    batch, features = z.shape[-2:]
    loss = torch.empty(labels.shape, dtype=torch.float32, device=z.device)
    shared, classes = counted is None, prototypes.shape[-2]
    _contrast[(ceil_div(batch, 16), labels.numel() // batch)](
        z, labels, prototypes.contiguous(), known.contiguous().view(torch.uint8), *_or_any(loss, offset, mask, weight),
        loss, loss if counted is None else counted.view(torch.uint8), slope, 1.0 / tau, batch, classes,
        Q=features, SHARED=shared, OFFSET=offset is not None, MASK=mask is not None, WEIGHT=weight is not None,
        BM=16, BK=power_of_two(classes), BLOCK=power_of_two(batch) if shared else 16, num_warps=4, **arithmetic(),
    )  # fmt: skip
    return loss


def contrast_slopes(
    z: Tensor, labels: Tensor, prototypes: Tensor, tau: float, known: Tensor, offset: Tensor | None,
    mask: Tensor | None, weight: Tensor | None, slope: Tensor,
) -> Share:  # fmt: skip
    """The same of each lane's mean contrast of z (L, B, Q), over those whose class is known."""
    return _contrasts(
        z.contiguous(), labels.contiguous(), prototypes, tau, known, offset, None, slope, mask, weight
    ), weight  # fmt: skip


def contrasts(
    z: Tensor, labels: Tensor, prototypes: Tensor, tau: float, known: Tensor, offset: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Losses (..., B) of z (..., B, Q), prototypes (..., K, Q), known (..., K), offset (..., K) of the similarities;
    and whether each sample's class is known.
    """
    found: tuple[Tensor, Tensor] = Contrast.apply(z, labels, prototypes, tau, known, offset)
    return found
