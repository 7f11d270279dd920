"""Optimizers on the flat parameters of L lanes, in one pass: SGD with momentum, Adam. Shapes: L lanes, P parameters."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedproc.kernels import ceil_div

BLOCK = 1024


@triton.jit
def _sgd(
    weights_at, gradient, velocity, lr, active, P, weights_lane, gradient_lane, velocity_lane, momentum, decay,
    BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < tl.where(tl.load(active + lane) != 0, P, 0)
    weights = tl.load(weights_at + lane * weights_lane + i, ok, 0.0)
    slope = tl.load(gradient + lane * gradient_lane + i, ok, 0.0)
    speed = tl.load(velocity + lane * velocity_lane + i, ok, 0.0)
    speed = momentum * speed + (slope + decay * weights)
    tl.store(velocity + lane * velocity_lane + i, speed, ok)
    tl.store(weights_at + lane * weights_lane + i, weights - tl.load(lr + lane) * speed, ok)


def sgd_(
    params: Tensor, gradient: Tensor, velocity: Tensor, lr: Tensor, momentum: float, decay: float, active: Tensor
) -> None:
    """Move params and velocity (L, P) of the active (L,) lanes."""
    lanes, count = params.shape
    _sgd[(ceil_div(count, BLOCK), lanes)](
        params, gradient, velocity, lr, active.view(torch.uint8), count,
        params.stride(0), gradient.stride(0), velocity.stride(0), momentum, decay, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


@triton.jit
def _adam(
    weights_at, gradient, mean_at, squares_at, lr, size, root, active, P,
    weights_lane, gradient_lane, mean_lane, squares_lane, rest1, beta2, rest2, epsilon, decay,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < tl.where(tl.load(active + lane) != 0, P, 0)
    weights = tl.load(weights_at + lane * weights_lane + i, ok, 0.0)
    slope = tl.load(gradient + lane * gradient_lane + i, ok, 0.0)
    mean = tl.load(mean_at + lane * mean_lane + i, ok, 0.0)
    squares = tl.load(squares_at + lane * squares_lane + i, ok, 0.0)
    if DECOUPLED:
        weights = weights * (1 - tl.load(lr + lane) * decay)
    else:
        slope = slope + decay * weights
    mean = mean + rest1 * (slope - mean)
    squares = beta2 * squares + rest2 * slope * slope
    below = tl.sqrt(squares) / tl.load(root + lane) + epsilon
    tl.store(mean_at + lane * mean_lane + i, mean, ok)
    tl.store(squares_at + lane * squares_lane + i, squares, ok)
    tl.store(weights_at + lane * weights_lane + i, weights - tl.load(size + lane) * mean / below, ok)


def adam_(
    params: Tensor, gradient: Tensor, mean: Tensor, squares: Tensor, lr: Tensor, size: Tensor, root: Tensor,
    active: Tensor, constants: tuple[float, float, float, float], decoupled: bool,
) -> None:  # fmt: skip
    """Move params and both running means (L, P) of the active (L,) lanes; `size` (L,) is lr over what the mean lacks of
    its first updates, `root` (L,) the square root of what the squares lack; the constants are beta1, beta2, epsilon and
    the weight decay.
    """
    lanes, count = params.shape
    beta1, beta2, epsilon, decay = constants
    _adam[(ceil_div(count, BLOCK), lanes)](
        params, gradient, mean, squares, lr, size, root, active.view(torch.uint8), count,
        params.stride(0), gradient.stride(0), mean.stride(0), squares.stride(0),
        1 - beta1, beta2, 1 - beta2, epsilon, decay,  # differences of doubles, not of what is left of them in float32
        DECOUPLED=decoupled, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
