"""Where noise and cohorts come from: hashes of the seed, which repeat, or the system's secure source."""

from __future__ import annotations

import os
from typing import Protocol

import torch
from torch import Tensor

from fedproc import streams
from fedproc.streams import Purpose


class Randomness(Protocol):
    """Numbers for a purpose, at a path such as (round, client)."""

    def uniforms(self, count: int, purpose: Purpose, *path: int) -> Tensor:
        """`count` float64 in [0, 1)."""

    def normals(self, count: int, purpose: Purpose, *path: int) -> Tensor:
        """`count` standard normals in float64."""


class Seeded:
    """The same numbers for the same seed and path."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def uniforms(self, count: int, purpose: Purpose, *path: int) -> Tensor:
        return streams.uniforms(streams.key(self._seed, purpose, *path), count)

    def normals(self, count: int, purpose: Purpose, *path: int) -> Tensor:
        return streams.normals(streams.key(self._seed, purpose, *path), count)


class Secure:
    """Other numbers each time, which nobody can foretell."""

    def uniforms(self, count: int, purpose: Purpose, *path: int) -> Tensor:
        return streams.uniform(_bits(count))

    def normals(self, count: int, purpose: Purpose, *path: int) -> Tensor:
        half = (count + 1) // 2
        return streams.box_muller(streams.uniform(_bits(half)), streams.uniform(_bits(half)))[:count]


def _bits(count: int) -> Tensor:
    """64 random bits each."""
    if not count:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
