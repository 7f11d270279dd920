"""relu(batch_norm(x) + add) with batch statistics, forwards and backwards, for channels-last images.

Torch reads and writes the whole image once for each of norm, addition and relu; here they are one pass after the one
that takes the statistics.
Shapes: R rows (batch and pixels flattened), C channels, S parts of the rows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedproc.kernels import ceil_div, power_of_two

ROWS, CHANNELS = 64, 64  # of a tile
PROGRAMS = 528  # that add up statistics


@triton.jit(do_not_specialize=["S"])
def _statistics(x, partial, R, C, S, BR: tl.constexpr, BC: tl.constexpr):
    """Sums and sums of squares of each part of the rows."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    first = tl.zeros((BC,), tl.float32)
    second = tl.zeros((BC,), tl.float32)
    for block in range(tl.program_id(1), tl.cdiv(R, BR), S):
        r = block * BR + tl.arange(0, BR)
        values = tl.load(x + r[:, None] * C + c[None, :], (r < R)[:, None] & (c < C)[None, :], 0.0).to(tl.float32)
        first += tl.sum(values, axis=0)
        second += tl.sum(values * values, axis=0)
    tl.store(partial + tl.program_id(1) * C + c, first, c < C)
    tl.store(partial + (S + tl.program_id(1)) * C + c, second, c < C)


@triton.jit
def _added(partial, c, C, S, BS: tl.constexpr):
    """Both sums over the parts."""
    s = tl.arange(0, BS)
    ok = (s < S)[:, None] & (c < C)[None, :]
    first = tl.sum(tl.load(partial + s[:, None] * C + c[None, :], ok, 0.0), axis=0)
    second = tl.sum(tl.load(partial + (S + s)[:, None] * C + c[None, :], ok, 0.0), axis=0)
    return first, second


@triton.jit(do_not_specialize=["S"])
def _settle(partial, mean, scale, running_mean, running_var, share, eps, R, C, S, BS: tl.constexpr, BC: tl.constexpr):
    """Mean and 1/deviation; the running statistics take their share of mean and unbiased variance."""
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    first, second = _added(partial, c, C, S, BS)
    middle = first / R
    variance = tl.maximum(second / R - middle * middle, 0.0)
    tl.store(mean + c, middle, c < C)
    tl.store(scale + c, 1.0 / tl.sqrt(variance + eps), c < C)
    unbiased = variance * (R / (R - 1.0))
    tl.store(running_mean + c, (1 - share) * tl.load(running_mean + c, c < C, 0.0) + share * middle, c < C)
    tl.store(running_var + c, (1 - share) * tl.load(running_var + c, c < C, 0.0) + share * unbiased, c < C)


@triton.jit
def _apply(
    x, add, mean, scale, weight, bias, y, R, C, ADD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    at = r[:, None] * C + c[None, :]
    ok = (r < R)[:, None] & (c < C)[None, :]
    gain = tl.load(scale + c, c < C, 0.0) * tl.load(weight + c, c < C, 0.0)
    shift = tl.load(bias + c, c < C, 0.0) - tl.load(mean + c, c < C, 0.0) * gain
    values = tl.load(x + at, ok, 0.0).to(tl.float32) * gain[None, :] + shift[None, :]
    if ADD:
        values += tl.load(add + at, ok, 0.0).to(tl.float32)
    tl.store(y + at, tl.where(values < 0, 0.0, values), ok)


@triton.jit(do_not_specialize=["S"])
def _gradient_sums(
    dy, y, x, mean, scale, weight, bias, partial, dadd, R, C, S,
    ADD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Of each part: sums of the gradient, and of the gradient times the norm's output before weight and bias.

    Where something was added, its gradient is what relu let through.
    """
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    middle = tl.load(mean + c, c < C, 0.0)
    scaling = tl.load(scale + c, c < C, 0.0)
    gain = scaling * tl.load(weight + c, c < C, 0.0)
    shift = tl.load(bias + c, c < C, 0.0) - middle * gain
    first = tl.zeros((BC,), tl.float32)
    second = tl.zeros((BC,), tl.float32)
    for block in range(tl.program_id(1), tl.cdiv(R, BR), S):
        r = block * BR + tl.arange(0, BR)
        at = r[:, None] * C + c[None, :]
        ok = (r < R)[:, None] & (c < C)[None, :]
        values = tl.load(x + at, ok, 0.0).to(tl.float32)
        gradient = tl.load(dy + at, ok, 0.0).to(tl.float32)
        if ADD:
            gradient = tl.where(tl.load(y + at, ok, 0.0).to(tl.float32) > 0, gradient, 0.0)
            tl.store(dadd + at, gradient, ok)
        else:
            gradient = tl.where(values * gain[None, :] + shift[None, :] > 0, gradient, 0.0)
        first += tl.sum(gradient, axis=0)
        second += tl.sum(gradient * (values - middle[None, :]) * scaling[None, :], axis=0)
    tl.store(partial + tl.program_id(1) * C + c, first, c < C)
    tl.store(partial + (S + tl.program_id(1)) * C + c, second, c < C)


@triton.jit(do_not_specialize=["S"])
def _settle_gradients(partial, dweight, dbias, C, S, BS: tl.constexpr, BC: tl.constexpr):
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    first, second = _added(partial, c, C, S, BS)
    tl.store(dbias + c, first, c < C)
    tl.store(dweight + c, second, c < C)


@triton.jit
def _input_gradient(
    dy, x, mean, scale, weight, bias, dweight, dbias, dx, R, C,
    ADD: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    at = r[:, None] * C + c[None, :]
    ok = (r < R)[:, None] & (c < C)[None, :]
    middle = tl.load(mean + c, c < C, 0.0)
    scaling = tl.load(scale + c, c < C, 0.0)
    gain = scaling * tl.load(weight + c, c < C, 0.0)
    shift = tl.load(bias + c, c < C, 0.0) - middle * gain
    values = tl.load(x + at, ok, 0.0).to(tl.float32)
    gradient = tl.load(dy + at, ok, 0.0).to(tl.float32)
    if not ADD:
        gradient = tl.where(values * gain[None, :] + shift[None, :] > 0, gradient, 0.0)
    normal = (values - middle[None, :]) * scaling[None, :]
    lost = tl.load(dbias + c, c < C, 0.0)[None, :] + normal * tl.load(dweight + c, c < C, 0.0)[None, :]
    tl.store(dx + at, gain[None, :] * (gradient - lost / R), ok)


def _shape(x: Tensor) -> tuple[int, int, int]:
    """Rows, channels, and the parts that statistics are added up in."""
    channels = x.shape[1]
    rows = x.numel() // channels
    return rows, channels, max(1, min(ceil_div(rows, ROWS), PROGRAMS // ceil_div(channels, CHANNELS)))


class NormRelu(torch.autograd.Function):
    """`norm_relu` with its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        add: Tensor | None,
        running_mean: Tensor,
        running_var: Tensor,
        share: float,
        eps: float,
    ) -> Tensor:
        rows, channels, parts = _shape(x)
        tile: dict[str, int] = {"BR": ROWS, "BC": CHANNELS}
        wide, tall = ceil_div(channels, CHANNELS), ceil_div(rows, ROWS)
        partial = torch.empty(2, parts, channels, dtype=torch.float32, device=x.device)
        mean, scale = torch.empty(2, channels, dtype=torch.float32, device=x.device)
        y = torch.empty_like(x)
        _statistics[(wide, parts)](x, partial, rows, channels, parts, **tile, num_stages=2)
        _settle[(ceil_div(channels, 16),)](
            partial, mean, scale, running_mean, running_var, share, eps, rows, channels, parts,
            BS=power_of_two(parts), BC=16,
        )  # fmt: skip
        given = x if add is None else add
        _apply[(tall, wide)](x, given, mean, scale, weight, bias, y, rows, channels, ADD=add is not None, **tile)
        ctx.added = add is not None
        ctx.save_for_backward(x, weight, bias, mean, scale, y if ctx.added else x)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale, y = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        rows, channels, parts = _shape(x)
        tile: dict[str, int] = {"BR": ROWS, "BC": CHANNELS}
        wide, tall = ceil_div(channels, CHANNELS), ceil_div(rows, ROWS)
        partial = torch.empty(2, parts, channels, dtype=torch.float32, device=x.device)
        dweight, dbias = torch.empty(2, channels, dtype=torch.float32, device=x.device)
        dx = torch.empty_like(x)
        dadd = torch.empty_like(x) if ctx.added else None
        seen = (x, mean, scale, weight, bias)
        passed = dy if dadd is None else dadd
        _gradient_sums[(wide, parts)](
            dy, y, *seen, partial, passed, rows, channels, parts, ADD=ctx.added, **tile, num_stages=2
        )
        _settle_gradients[(ceil_div(channels, 16),)](
            partial, dweight, dbias, channels, parts, BS=power_of_two(parts), BC=16
        )
        _input_gradient[(tall, wide)](passed, *seen, dweight, dbias, dx, rows, channels, ADD=ctx.added, **tile)
        return dx, dweight, dbias, dadd, None, None, None, None


def norm_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    add: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    share: float,
    eps: float,
) -> Tensor:
    """relu(batch_norm(x) + add); the running statistics take their `share` of the batch's."""
    y: Tensor = NormRelu.apply(x, weight, bias, add, running_mean, running_var, share, eps)
    return y
