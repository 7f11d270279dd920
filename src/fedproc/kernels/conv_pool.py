"""relu(max_pool2(conv(x))) for L lanes with separate weights, and its gradients.

The convolution (valid, stride 1, square kernel of `SIDE`) is a product of patches and weights, formed tile by tile. A
row of it is one pooling window: its patch of (SIDE + 1)^2 pixels per channel holds what all four places of the window
need, and the four are columns side by side, each with the weights shifted to its corner. The largest of the four, and
which it was, are all that is stored; backwards, a gradient goes to the place that won.
Shapes: L lanes, B batch, C channels in, H x W pixels, N channels out, PH x PW windows.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedproc.kernels import activations, arithmetic, ceil_div, join_lanes, power_of_two
from fedproc.kernels.flat_gradient import place_for
from fedproc.kernels.forks import side_by_side

PROGRAMS = 264  # that sum up weight gradients: two for each processor of an H200
LEAST_SPLITS = 10  # of each lane's sum, however many lanes there are: with 100 lanes 3 of them took a fifth longer


@triton.jit
def _product(a, b, acc, SHORT: tl.constexpr, PRODUCT: tl.constexpr):
    if SHORT:
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), acc)
    return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=PRODUCT)


@triton.jit(do_not_specialize=["B"])
def _forward(
    x, w, bias, y, won, w_lane, bias_lane, B,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, SHORT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    x += lane * B * C * H * W  # pointers to the lane, so that what is added for each element is short
    w += lane * w_lane
    y += lane * B * N * PH * PW
    won += lane * B * N * PH * PW
    U: tl.constexpr = SIDE + 1
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = m < B * PH * PW
    b = m // (PH * PW)
    p = m % (PH * PW)
    corner = b * (C * H * W) + 2 * (p // PW) * W + 2 * (p % PW)
    j = tl.arange(0, 4 * BN)
    q = j // BN
    out = j % BN
    acc = tl.zeros((BM, 4 * BN), tl.float32)
    for first in tl.static_range(0, C * U * U, BK):
        k = first + tl.arange(0, BK)
        there = k < C * U * U
        c = k // (U * U)
        u = (k % (U * U)) // U
        v = k % U
        row = u[:, None] - (q // 2)[None, :]
        column = v[:, None] - (q % 2)[None, :]
        ok = (row >= 0) & (row < SIDE) & (column >= 0) & (column < SIDE) & (out < N)[None, :] & there[:, None]
        spot = (out * (C * SIDE * SIDE))[None, :] + (c * (SIDE * SIDE))[:, None] + row * SIDE + column
        weights = tl.load(w + spot, ok, 0.0)
        shift = c * (H * W) + u * W + v
        patches = tl.load(x + corner[:, None] + shift[None, :], inside[:, None] & there[None, :], 0.0)
        acc = _product(patches, weights, acc, SHORT, PRODUCT)
    best, which = tl.max(tl.reshape(acc, (BM, 4, BN)), axis=1, return_indices=True)
    total = tl.sum(tl.reshape(acc, (BM, 4, BN)), axis=1)
    best = tl.where(total == total, best, total)  # a maximum may ignore nan
    n = tl.arange(0, BN)
    best += tl.load(bias + lane * bias_lane + n, n < N, 0.0)[None, :]
    which = tl.where(best > 0, which, 4)  # relu cuts all four off: none won
    to = (b * (N * PH * PW) + p)[:, None] + n[None, :] * (PH * PW)
    ok = inside[:, None] & (n < N)[None, :]
    tl.store(y + to, tl.where(best < 0, 0.0, best), ok)
    tl.store(won + to, which.to(tl.int8), ok)


@triton.jit(do_not_specialize=["B", "SPLITS"])
def _weight_gradient(
    x, g, won, partial, B, SPLITS,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr, SHORT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """Sums over a part of the windows, for each pixel of a patch and each (place, channel), and a row for the bias."""
    split = tl.program_id(0)
    lane = tl.program_id(2).to(tl.int64)
    x += lane * B * C * H * W
    g += lane * B * N * PH * PW
    won += lane * B * N * PH * PW
    U: tl.constexpr = SIDE + 1
    k = tl.arange(0, BK)
    if BK <= C * U * U:
        k += tl.program_id(1) * BK
    shift = (k // (U * U)) * (H * W) + ((k % (U * U)) // U) * W + k % U
    there = (k < C * U * U)[None, :]
    ones = (k == C * U * U)[None, :]
    j = tl.arange(0, 4 * BN)
    q = (j // BN)[None, :]
    n = j % BN
    acc = tl.zeros((BK, 4 * BN), tl.float32)
    rows = B * PH * PW
    for block in range(split, tl.cdiv(rows, BM), SPLITS):
        m = block * BM + tl.arange(0, BM)
        inside = m < rows
        b = m // (PH * PW)
        p = m % (PH * PW)
        corner = b * (C * H * W) + 2 * (p // PW) * W + 2 * (p % PW)
        at = (b * (N * PH * PW) + p)[:, None] + n[None, :] * (PH * PW)
        ok = inside[:, None] & (n < N)[None, :]
        gradient = tl.load(g + at, ok, 0.0).to(tl.float32)
        which = tl.load(won + at, ok, 4).to(tl.int32)
        patches = tl.load(x + corner[:, None] + shift[None, :], there & inside[:, None], 0.0).to(tl.float32)
        patches = tl.trans(tl.where(ones, 1.0, patches))
        acc = _product(patches, tl.where(which == q, gradient, 0.0), acc, SHORT, PRODUCT)
    to = ((lane * SPLITS + split) * tl.num_programs(1) * BK + k)[:, None] * (4 * BN) + j[None, :]
    tl.store(partial + to, acc)


@triton.jit(do_not_specialize=["SPLITS"])
def _fold(
    partial, dw, db, dw_lane, db_lane, KP, SPLITS,
    C: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr, BS: tl.constexpr,
    BN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the parts up, and for each weight the pixels that it met at the four places."""
    lane = tl.program_id(1).to(tl.int64)
    U: tl.constexpr = SIDE + 1
    K: tl.constexpr = C * SIDE * SIDE
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    weight = i < N * K
    n = tl.where(weight, i // K, i - N * K)
    c = (i % K) // (SIDE * SIDE)
    row = (i % (SIDE * SIDE)) // SIDE
    column = i % SIDE
    s = tl.arange(0, BS)
    total = tl.zeros((BLOCK,), tl.float32)
    for q in tl.static_range(4):
        k = tl.where(weight, c * (U * U) + (row + q // 2) * U + column + q % 2, C * U * U)
        at = ((lane * SPLITS + s)[None, :] * KP + k[:, None]) * (4 * BN) + q * BN + n[:, None]
        parts = tl.load(partial + at, (i < N * K + N)[:, None] & (s < SPLITS)[None, :], 0.0)
        total += tl.sum(parts, axis=1)
    tl.store(dw + lane * dw_lane + i, total, weight)
    tl.store(db + lane * db_lane + n, total, (i >= N * K) & (i < N * K + N))


@triton.jit(do_not_specialize=["B"])
def _input_gradient(
    g, won, w, dx, w_lane, B,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, N: tl.constexpr, SIDE: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BN: tl.constexpr, SHORT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    """A row is a block of 2 x 2 pixels, its columns are (pixel of the block, channel); it sums over the windows whose
    patches reach it.
    """
    lane = tl.program_id(1).to(tl.int64)
    g += lane * B * N * PH * PW
    won += lane * B * N * PH * PW
    w += lane * w_lane
    dx += lane * B * C * H * W
    BH: tl.constexpr = (H + 1) // 2
    BW: tl.constexpr = (W + 1) // 2
    D: tl.constexpr = SIDE // 2 + 1
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    inside = m < B * BH * BW
    b = m // (BH * BW)
    block_row = (m % (BH * BW)) // BW
    block_column = m % BW
    j = tl.arange(0, 4 * BC)
    pixel = j // BC
    c = j % BC
    n = tl.arange(0, BN)
    acc = tl.zeros((BM, 4 * BC), tl.float32)
    sample = b * (N * PH * PW)
    for d in range(D * D):
        row = block_row - d // D
        column = block_column - d % D
        ok = inside & (row >= 0) & (row < PH) & (column >= 0) & (column < PW)
        at = (sample + row * PW + column)[:, None] + n[None, :] * (PH * PW)
        there = ok[:, None] & (n < N)[None, :]
        gradient = tl.load(g + at, there, 0.0).to(tl.float32)
        which = tl.load(won + at, there, 4).to(tl.int32)
        for q in tl.static_range(4):
            tap_row = 2 * (d // D) + pixel // 2 - q // 2
            tap_column = 2 * (d % D) + pixel % 2 - q % 2
            fits = (tap_row >= 0) & (tap_row < SIDE) & (tap_column >= 0) & (tap_column < SIDE) & (c < C)
            spot = n[:, None] * (C * SIDE * SIDE) + (c * (SIDE * SIDE) + tap_row * SIDE + tap_column)[None, :]
            weights = tl.load(w + spot, (n < N)[:, None] & fits[None, :], 0.0)
            acc = _product(tl.where(which == q, gradient, 0.0), weights, acc, SHORT, PRODUCT)
    row = (2 * block_row)[:, None] + (pixel // 2)[None, :]
    column = (2 * block_column)[:, None] + (pixel % 2)[None, :]
    to = b[:, None] * (C * H * W) + (c * (H * W))[None, :] + row * W + column
    tl.store(dx + to, acc, inside[:, None] & (c < C)[None, :] & (row < H) & (column < W))


def _sizes(x: Tensor, w: Tensor) -> dict[str, int]:
    _, _, channels, height, width = x.shape
    out, side = w.shape[1], w.shape[-1]
    return {
        "C": channels,
        "H": height,
        "W": width,
        "N": out,
        "SIDE": side,
        "PH": (height - side + 1) // 2,
        "PW": (width - side + 1) // 2,
    }


def forward(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """y (L, B, N, H', W') and which place of each window won."""
    sizes = _sizes(x, w)
    block, bk = (256, 16) if sizes["N"] <= 8 else (128, 32)
    lanes, batch = x.shape[:2]
    shape = (lanes, batch, sizes["N"], sizes["PH"], sizes["PW"])
    y = torch.empty(shape, dtype=activations(w.dtype), device=x.device)
    won = torch.empty(shape, dtype=torch.int8, device=x.device)
    grid = (ceil_div(batch * sizes["PH"] * sizes["PW"], block), lanes)
    _forward[grid](
        x, w, bias, y, won, w.stride(0), bias.stride(0), batch,
        **sizes, BM=block, BK=bk, BN=power_of_two(sizes["N"], 4), num_warps=4, num_stages=1, **arithmetic(),
    )  # fmt: skip
    return y, won


def weight_gradient(x: Tensor, w: Tensor, bias: Tensor, g: Tensor, won: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of weights (L, N, C, side, side) and bias (L, N)."""
    sizes = _sizes(x, w)
    lanes, batch = x.shape[:2]
    out, channels, side = sizes["N"], sizes["C"], sizes["SIDE"]
    rows = channels * (side + 1) ** 2 + 1
    block, bk = (128, power_of_two(rows)) if rows <= 128 else (64, 64)
    chunks, bn, warps = ceil_div(rows, bk), power_of_two(out, 4), 4
    blocks = ceil_div(batch * sizes["PH"] * sizes["PW"], block)
    splits = max(1, min(blocks, max(ceil_div(PROGRAMS, lanes * chunks), LEAST_SPLITS // chunks)))
    partial = torch.empty(lanes, splits, chunks * bk, 4 * bn, dtype=torch.float32, device=x.device)
    _weight_gradient[(splits, chunks, lanes)](
        x, g, won, partial, batch, splits,
        **sizes, BM=block, BK=bk, BN=bn, num_warps=warps, num_stages=1, **arithmetic(),
    )  # fmt: skip
    dw, db = place_for(w, torch.float32), place_for(bias, torch.float32)
    wide = power_of_two(splits, 32)
    tall = max(16, 1024 // wide)
    _fold[(ceil_div(w[0].numel() + out, tall), lanes)](
        partial, dw, db, dw.stride(0), db.stride(0), chunks * bk, splits,
        C=channels, N=out, SIDE=side, BS=wide, BN=bn, BLOCK=tall, num_warps=4,
    )  # fmt: skip
    return dw, db


def input_gradient(x: Tensor, w: Tensor, g: Tensor, won: Tensor, block: int = 128, warps: int = 4) -> Tensor:
    """The gradient of x."""
    sizes = _sizes(x, w)
    lanes, batch = x.shape[:2]
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (ceil_div(batch * ceil_div(sizes["H"], 2) * ceil_div(sizes["W"], 2), block), lanes)
    _input_gradient[grid](
        g, won, w, dx, w.stride(0), batch, **sizes, BM=block, BC=power_of_two(sizes["C"], 4),
        BN=power_of_two(sizes["N"]), num_warps=warps, num_stages=1, **arithmetic(),
    )  # fmt: skip
    return dx


class ConvReluPool(torch.autograd.Function):
    """`conv_relu_pool` with its gradients; the vmapped axis joins the lanes."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return forward(x.contiguous(), _packed(w), bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: None) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, w, bias, won = ctx.saved_tensors
        x, w, g = x.contiguous(), _packed(w), g.contiguous()
        to_x, *to_w = ctx.needs_input_grad
        (dw, db), dx = side_by_side(
            lambda: weight_gradient(x, w, bias, g, won) if any(to_w) else (None, None),
            lambda: input_gradient(x, w, g, won) if to_x else None,
        )
        return dx, dw, db

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, bias: Tensor) -> Any:
        y, won = ConvReluPool.apply(*join_lanes(in_dims, info.batch_size, x, w, bias))
        split = (info.batch_size, -1)
        return (y.unflatten(0, split), won.unflatten(0, split)), (0, 0)


def conv_relu_pool(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """y (L, B, N, H', W') of x (L, B, C, H, W), w (L, N, C, side, side), bias (L, N)."""
    y: Tensor = ConvReluPool.apply(x, w, bias)[0]
    return y


def _packed(w: Tensor) -> Tensor:
    """Weights that are contiguous in each lane; lanes may lie apart."""
    return w if w[0].is_contiguous() else w.contiguous()
