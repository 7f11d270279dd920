"""The streams' hash at (key, epoch, position), in one pass; the same bits as `fedproc.streams` gives."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedproc.kernels import ceil_div

BLOCK = 1024


@triton.jit
def _mix(words):
    words = (words ^ ((words >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    words = (words ^ ((words >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return words ^ ((words >> 31) & 0x1FFFFFFFF)


@triton.jit
def _fold(keys, values):
    return _mix((_mix(values + -7046029254386353131) ^ keys) + -7046029254386353131)


@triton.jit(do_not_specialize=["key", "wide", "count"])
def _bits(
    epochs, positions, out, key, wide, count, below,
    GIVEN: tl.constexpr, BOUNDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < count
    epoch = tl.load(epochs + i // wide, ok, 0)
    position = tl.load(positions + i, ok, 0) if GIVEN else i % wide
    bits = _fold(_fold(key.to(tl.int64), epoch), position)
    if BOUNDED:
        bits = (((bits >> 32) & 0xFFFFFFFF) * below) >> 32
    tl.store(out + i, bits, ok)


def draws(key: int, epochs: Tensor, positions: Tensor, below: int) -> Tensor:
    """Integers below `below`, at epochs (S,) and positions (S, B), as int16 (S, B)."""
    out = torch.empty(positions.shape, dtype=torch.int16, device=positions.device)
    positions = positions.contiguous()
    count = positions.numel()
    _bits[(ceil_div(count, BLOCK),)](
        epochs.contiguous(), positions, out, key, positions.shape[-1], count, below,
        GIVEN=True, BOUNDED=True, BLOCK=BLOCK,
    )  # fmt: skip
    return out


def bits(key: int, epochs: Tensor, wide: int) -> Tensor:
    """64 random bits at epochs (S,) and positions 0 to wide - 1, as int64 (S, wide)."""
    out = torch.empty(len(epochs), wide, dtype=torch.int64, device=epochs.device)
    _bits[(ceil_div(out.numel(), BLOCK),)](
        epochs, epochs, out, key, wide, out.numel(), 0, GIVEN=False, BOUNDED=False, BLOCK=BLOCK
    )
    return out
