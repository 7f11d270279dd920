"""x w^T + b, with relu where asked, for L lanes with separate weights, and its gradients.

Shapes: L lanes, M rows, K features in, N features out.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedproc.kernels import activations, arithmetic, ceil_div, join_lanes
from fedproc.kernels.conv_pool import _packed, _product
from fedproc.kernels.flat_gradient import place_for
from fedproc.kernels.forks import side_by_side


@triton.jit(do_not_specialize=["M"])
def _forward(
    x, w, bias, y, x_lane, w_lane, bias_lane, M, N, K,
    AN: tl.constexpr, AK: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SHORT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    N *= AN  # written as products, so that loads of neighbours can be joined
    K *= AK
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        a = tl.load(x + lane * x_lane + m[:, None] * K + k[None, :], (m < M)[:, None] & (k < K)[None, :], 0.0)
        b = tl.load(w + lane * w_lane + n[None, :] * K + k[:, None], (n < N)[None, :] & (k < K)[:, None], 0.0)
        acc = _product(a, b, acc, SHORT, PRODUCT)
    acc += tl.load(bias + lane * bias_lane + n, n < N, 0.0)[None, :]
    if RELU:
        acc = tl.where(acc < 0, 0.0, acc)
    tl.store(y + lane * M * N + m[:, None] * N + n[None, :], acc, (m < M)[:, None] & (n < N)[None, :])


@triton.jit(do_not_specialize=["M"])
def _input_gradient(
    g, y, w, dx, w_lane, M, N, K,
    AN: tl.constexpr, AK: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SHORT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    N *= AN  # written as products, so that loads of neighbours can be joined
    K *= AK
    lane = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    acc = tl.zeros((BM, BK), tl.float32)
    for first in range(0, N, BN):
        n = first + tl.arange(0, BN)
        at = lane * M * N + m[:, None] * N + n[None, :]
        ok = (m < M)[:, None] & (n < N)[None, :]
        a = tl.load(g + at, ok, 0.0)
        if RELU:
            a = tl.where(tl.load(y + at, ok, 0.0) > 0, a, 0.0)
        b = tl.load(w + lane * w_lane + n[:, None] * K + k[None, :], (n < N)[:, None] & (k < K)[None, :], 0.0)
        acc = _product(a, b, acc, SHORT, PRODUCT)
    tl.store(dx + lane * M * K + m[:, None] * K + k[None, :], acc, (m < M)[:, None] & (k < K)[None, :])


@triton.jit(do_not_specialize=["M"])
def _weight_gradient(
    g, y, x, dw, db, x_lane, dw_lane, db_lane, M, N, K,
    AN: tl.constexpr, AK: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SHORT: tl.constexpr, PRODUCT: tl.constexpr,
):  # fmt: skip
    N *= AN  # written as products, so that loads of neighbours can be joined
    K *= AK
    lane = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.program_id(1) * BK + tl.arange(0, BK)
    acc = tl.zeros((BN, BK), tl.float32)
    bias = tl.zeros((BN,), tl.float32)
    for first in range(0, M, BM):
        m = first + tl.arange(0, BM)
        at = lane * M * N + m[None, :] * N + n[:, None]
        ok = (m < M)[None, :] & (n < N)[:, None]
        a = tl.load(g + at, ok, 0.0)
        if RELU:
            a = tl.where(tl.load(y + at, ok, 0.0) > 0, a, 0.0)
        b = tl.load(x + lane * x_lane + m[:, None] * K + k[None, :], (m < M)[:, None] & (k < K)[None, :], 0.0)
        acc = _product(a, b, acc, SHORT, PRODUCT)
        bias += tl.sum(a.to(tl.float32), axis=1)
    tl.store(dw + lane * dw_lane + n[:, None] * K + k[None, :], acc, (n < N)[:, None] & (k < K)[None, :])
    if tl.program_id(1) == 0:
        tl.store(db + lane * db_lane + n, bias, n < N)


def _sizes(out: int, features: int) -> tuple[int, int, int, int]:
    """N and K without a factor of 4 or 2 that they have, and the factors."""
    by_n, by_k = (4 if size % 4 == 0 else 2 if size % 2 == 0 else 1 for size in (out, features))
    return out // by_n, features // by_k, by_n, by_k


def forward(x: Tensor, w: Tensor, bias: Tensor, relu: bool, hidden: bool) -> Tensor:
    lanes, rows, features = x.shape
    out = w.shape[1]
    y = torch.empty(lanes, rows, out, dtype=activations(w.dtype) if hidden else w.dtype, device=x.device)
    bm, bn = 64 if rows > 32 else 32, 32
    _forward[(ceil_div(rows, bm), ceil_div(out, bn), lanes)](
        x, w, bias, y, x.stride(0), w.stride(0), bias.stride(0), rows, *_sizes(out, features),
        RELU=relu, BM=bm, BN=bn, BK=64, num_warps=4, num_stages=3 if features > 128 else 1, **arithmetic(),
    )  # fmt: skip
    return y


def input_gradient(g: Tensor, y: Tensor, x: Tensor, w: Tensor, relu: bool) -> Tensor:
    lanes, rows, features = x.shape
    out = w.shape[1]
    dx = torch.empty(lanes, rows, features, dtype=x.dtype, device=x.device)
    bm, bk = 32, 32
    _input_gradient[(ceil_div(rows, bm), ceil_div(features, bk), lanes)](
        g, y, w, dx, w.stride(0), rows, *_sizes(out, features),
        RELU=relu, BM=bm, BN=64, BK=bk, num_warps=4, num_stages=1, **arithmetic(),
    )  # fmt: skip
    return dx


def weight_gradient(g: Tensor, y: Tensor, x: Tensor, w: Tensor, bias: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    lanes, rows, features = x.shape
    out = w.shape[1]
    dw, db = place_for(w, w.dtype), place_for(bias, w.dtype)
    bn, bk = 32, 32
    _weight_gradient[(ceil_div(out, bn), ceil_div(features, bk), lanes)](
        g, y, x, dw, db, x.stride(0), dw.stride(0), db.stride(0), rows, *_sizes(out, features),
        RELU=relu, BM=64, BN=bn, BK=bk, num_warps=2, num_stages=1, **arithmetic(),
    )  # fmt: skip
    return dw, db


class Linear(torch.autograd.Function):
    """`linear` with its gradients; the vmapped axis joins the lanes."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor, relu: bool, hidden: bool) -> Tensor:
        return forward(_packed(x), _packed(w), bias, relu, hidden)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool, bool], output: Tensor) -> None:
        ctx.relu = inputs[3]
        ctx.save_for_backward(*inputs[:3], output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, w, bias, y = ctx.saved_tensors
        x, w, g, relu = _packed(x), _packed(w), g.contiguous(), ctx.relu
        to_x, *to_w = ctx.needs_input_grad[:3]
        (dw, db), dx = side_by_side(
            lambda: weight_gradient(g, y, x, w, bias, relu) if any(to_w) else (None, None),
            lambda: input_gradient(g, y, x, w, relu) if to_x else None,
        )
        return dx, dw, db, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, bias: Tensor, relu: bool, hidden: bool
    ) -> Any:
        y = Linear.apply(*join_lanes(in_dims[:3], info.batch_size, x, w, bias), relu, hidden)
        return y.unflatten(0, (info.batch_size, -1)), 0


def linear(x: Tensor, w: Tensor, bias: Tensor, relu: bool, hidden: bool) -> Tensor:
    """y (L, M, N) of x (L, M, K), w (L, N, K), bias (L, N); `hidden` layers are stored in the short type, if any."""
    y: Tensor = Linear.apply(x, w, bias, relu, hidden)
    return y
