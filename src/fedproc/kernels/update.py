"""SGD with momentum and weight decay on the flat parameters of L lanes, in one pass. Shapes: L lanes, P parameters."""

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
