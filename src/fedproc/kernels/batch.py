"""A batch as the network sees it, in one pass: taken from the bank of bytes, moved, normalised.

Shapes: S steps, N images per step (lanes and batch flattened), C channels, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedproc.kernels import DRAWN, ceil_div, power_of_two


@triton.jit
def _spread(values, about, factor):
    return tl.minimum(tl.maximum(100 * about + (values - about) * factor + 50, 0) // 100, 255)


@triton.jit
def _lit(values, bright, strong):
    """Bytes with another brightness and contrast (data/augment.py says how)."""
    return _spread(tl.minimum((values.to(tl.int32) * bright + 50) // 100, 255), 128, strong)


@triton.jit(do_not_specialize=["N"])
def _batch(
    bank, bank_labels, cursor, index, row, column, flip, angle, vertical, brightness, contrast, saturation,
    cosines, sines, middle, scale, out, labels, N,
    C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr,
    CROP: tl.constexpr, REFLECT: tl.constexpr, FLIP: tl.constexpr, TURN: tl.constexpr,
    VERTICAL: tl.constexpr, COLOUR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    here = tl.load(cursor) * N + image
    source = tl.load(index + here)
    if tl.program_id(1) == 0:
        tl.store(labels + image, tl.load(bank_labels + source))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < C * H * W
    c = i // (H * W)
    y = (i % (H * W)) // W
    x = i % W
    there = inside
    if TURN:
        turn = tl.load(angle + here).to(tl.int32)
        cosine = tl.load(cosines + turn).to(tl.int32)
        sine = tl.load(sines + turn).to(tl.int32)
        down = 2 * y - (H - 1)
        right = 2 * x - (W - 1)
        y = (cosine * down - sine * right + 65536 * (H - 1) + 65536) >> 17
        x = (sine * down + cosine * right + 65536 * (W - 1) + 65536) >> 17
        there = there & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    if FLIP:
        x = tl.where(tl.load(flip + here) != 0, W - 1 - x, x)
    if VERTICAL:
        y = tl.where(tl.load(vertical + here) != 0, H - 1 - y, y)
    if CROP:
        y += tl.load(row + here).to(tl.int32) - PAD
        x += tl.load(column + here).to(tl.int32) - PAD
        if REFLECT:
            y = tl.abs(y)
            y = tl.where(y >= H, 2 * (H - 1) - y, y)
            x = tl.abs(x)
            x = tl.where(x >= W, 2 * (W - 1) - x, x)
        else:
            there = there & (y >= 0) & (y < H) & (x >= 0) & (x < W)
    y = tl.minimum(tl.maximum(y, 0), H - 1)
    x = tl.minimum(tl.maximum(x, 0), W - 1)
    place = bank + source.to(tl.int64) * (C * H * W) + y * W + x
    pixels = tl.load(place + c * (H * W), there, 0)
    if COLOUR:
        bright = 80 + tl.load(brightness + here).to(tl.int32)
        strong = 80 + tl.load(contrast + here).to(tl.int32)
        pixels = _lit(pixels, bright, strong)
        if C == 3:
            red = _lit(tl.load(place, there, 0), bright, strong)
            green = _lit(tl.load(place + H * W, there, 0), bright, strong)
            blue = _lit(tl.load(place + 2 * H * W, there, 0), bright, strong)
            grey = (77 * red + 150 * green + 29 * blue + 128) >> 8
            pixels = _spread(pixels, grey, 80 + tl.load(saturation + here).to(tl.int32))
        pixels = tl.where(there, pixels, 0)
    values = (pixels.to(tl.float32) - tl.load(middle + c, inside, 0.0)) * tl.load(scale + c, inside, 0.0)
    tl.store(out + image.to(tl.int64) * (C * H * W) + i, values, inside)


def batch(
    images: Tensor,
    labels: Tensor,
    cursor: Tensor,
    index: Tensor,
    draws: Mapping[str, Tensor],
    turns: tuple[Tensor, Tensor] | None,
    levels: tuple[Tensor, Tensor],
    pad: str | None,
    width: int,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Images (..., C, H, W) of `dtype` and labels (...) of step `cursor` of index (S, ...) and draws (S, ...)."""
    shape = index.shape[1:]
    count = shape.numel()
    channels, height, wide = images.shape[1:]
    out = torch.empty(*shape, channels, height, wide, dtype=dtype, device=images.device)
    found = torch.empty(shape, dtype=labels.dtype, device=images.device)
    pixels = channels * height * wide
    block = min(1024, power_of_two(pixels))
    unused = index
    cosines, sines = turns if turns is not None else (unused, unused)
    _batch[(count, ceil_div(pixels, block))](
        images, labels, cursor, index,
        *(draws.get(name, unused) for name in DRAWN), cosines, sines, *levels, out, found, count,
        C=channels, H=height, W=wide, PAD=width, CROP="row" in draws, REFLECT=pad == "reflect",
        FLIP="flip" in draws, TURN="angle" in draws, VERTICAL="flip_vertical" in draws, COLOUR="brightness" in draws,
        BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out, found
