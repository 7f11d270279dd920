"""Randomness as a pure function: hash(seed, purpose, round, client, epoch, sample).

Every random choice of an experiment (the partition aside) is read off a splitmix64 hash of where it is
made, never off a generator's state, so it does not depend on executor, device, order or restarts.
Scalars are folded as Python integers, the last axes as int64 tensors; both give the same 64 bits.
"""

from __future__ import annotations

import math
from enum import IntEnum

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
WORD = 1 << 64


class Purpose(IntEnum):
    """What a random number is for. The values are part of every result: add, never renumber."""

    INITIAL = 1
    COHORT = 2
    ORDER = 3
    CROP_ROW = 4
    CROP_COLUMN = 5
    FLIP = 6
    ROTATION = 7
    VALIDATION = 8
    PROTOTYPES = 9
    TORCH = 10
    TEST_SPLIT = 11
    TEST_SHARES = 12
    CCVR = 13
    ATTACKERS = 14
    ATTACK = 15
    FLIP_VERTICAL = 20
    BRIGHTNESS = 21
    CONTRAST = 22
    SATURATION = 23
    TAKES_PART = 30  # a client in a round with Poisson cohorts
    NOISE = 31  # that privacy adds at the server
    CLIENT_NOISE = 32
    COUNT_NOISE = 33
    CLIENT_COUNT_NOISE = 34


def signed(word: int) -> int:
    """The 64 bits of `word` as the int64 a tensor holds."""
    word %= WORD
    return word - WORD if word >= WORD // 2 else word


def mix(word: int) -> int:
    """splitmix64's finaliser on the low 64 bits of `word`."""
    word %= WORD
    word = (word ^ (word >> 30)) * FIRST % WORD
    word = (word ^ (word >> 27)) * SECOND % WORD
    return word ^ (word >> 31)


def fold(key: int, value: int) -> int:
    """The key one coordinate further in."""
    return mix((mix(value + GOLDEN) ^ (key % WORD)) + GOLDEN)


def key(seed: int, purpose: Purpose, *path: int) -> int:
    """The key at (seed, purpose, *path), as an unsigned 64-bit integer."""
    word = fold(0, seed)
    for value in (int(purpose), *path):
        word = fold(word, value)
    return word


def _shifted(words: Tensor, by: int) -> Tensor:
    """A logical right shift: torch's own one drags the sign along."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def mix_tensor(words: Tensor) -> Tensor:
    """`mix` on int64 tensors, whose products wrap around as they should."""
    words = (words ^ _shifted(words, 30)) * signed(FIRST)
    words = (words ^ _shifted(words, 27)) * signed(SECOND)
    return words ^ _shifted(words, 31)


def fold_tensor(keys: int | Tensor, values: Tensor) -> Tensor:
    """`fold` on int64 tensors that broadcast; returns 64 random bits an element."""
    bits = signed(keys) if isinstance(keys, int) else keys
    return mix_tensor((mix_tensor(values + signed(GOLDEN)) ^ bits) + signed(GOLDEN))


def integers(bits: Tensor, below: int) -> Tensor:
    """Integers in [0, below) from 64 random bits, below < 2**31."""
    return (_shifted(bits, 32) * below) >> 32


def draws(at: int, epochs: Tensor, positions: Tensor, below: int) -> Tensor:
    """Integers in [0, below) as int16 (S, B), at a key, epochs (S,) and positions (S, B)."""
    from fedproc import kernels
    from fedproc.kernels import cpu

    if positions.is_cuda and kernels.missing() is None:
        from fedproc.kernels import hash as kernel

        return kernel.draws(signed(at), epochs, positions, below)
    if positions.device.type == "cpu" and positions.dim() == 2 and cpu.missing() is None:
        return cpu.draws(at, epochs, positions, below)
    return integers(fold_tensor(fold_tensor(at, epochs).unsqueeze(-1), positions), below).to(torch.int16)


def orders(at: int, epochs: Tensor, count: int) -> Tensor:
    """Permutations of range(count) (S, count), one for each epoch (S,) at a key."""
    from fedproc import kernels
    from fedproc.kernels import cpu

    if epochs.is_cuda and kernels.missing() is None:
        from fedproc.kernels import hash as kernel

        keys = kernel.bits(signed(at), epochs, count)
    elif epochs.device.type == "cpu" and cpu.missing() is None:
        keys = cpu.bits(at, epochs, count)
    else:
        keys = fold_tensor(fold_tensor(at, epochs).unsqueeze(-1), torch.arange(count, device=epochs.device))
    return keys.argsort(dim=-1, stable=True)


def uniform(bits: Tensor) -> Tensor:
    """Float64 in [0, 1) from 64 random bits."""
    return _shifted(bits, 11).to(torch.float64) * 2.0**-53


def uniforms(at: int, count: int) -> Tensor:
    """`count` float64 in [0, 1) at one key, on the CPU."""
    return uniform(fold_tensor(at, torch.arange(count)))


def normals(at: int, count: int) -> Tensor:
    """`count` standard normals in float64 at one key (Box-Muller), on the CPU."""
    half = (count + 1) // 2
    return box_muller(uniforms(fold(at, 0), half), uniforms(fold(at, 1), half))[:count]


def box_muller(first: Tensor, second: Tensor) -> Tensor:
    """Twice as many standard normals as there are pairs of uniform numbers in [0, 1)."""
    first = 1.0 - first  # in (0, 1], so the logarithm is finite
    radius, angle = torch.sqrt(-2.0 * torch.log(first)), 2.0 * math.pi * second
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)])


def order(at: int, count: int) -> Tensor:
    """A permutation of range(count): the stable argsort of the keys of its elements."""
    return torch.argsort(fold_tensor(at, torch.arange(count)), stable=True)


def torch_seed(at: int) -> int:
    """A seed for torch's own generator, for modules whose randomness is not ours."""
    return at >> 1
