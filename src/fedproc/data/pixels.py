"""Mean and deviation of images from sums, which parts of a data set can be asked for one by one and added exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedproc.data.augment import Normalisation
from fedproc.data.images import CHUNK, Bytes


@dataclass(frozen=True)
class PixelSums:
    """Of each channel: the sum of its pixels (0 to 255) and of their squares; and how many pixels a channel has."""

    sums: tuple[int, ...]
    squares: tuple[int, ...]
    pixels: int

    @classmethod
    def of(cls, images: Bytes) -> PixelSums:
        """Of images (N, C, H, W)."""
        sums = np.zeros(images.shape[1], dtype=np.int64)
        squares = np.zeros(images.shape[1], dtype=np.int64)
        for start in range(0, len(images), CHUNK):
            part = images[start : start + CHUNK]
            sums += part.sum(axis=(0, 2, 3), dtype=np.int64)
            squares += np.square(part, dtype=np.uint32).sum(axis=(0, 2, 3), dtype=np.int64)
        return cls(tuple(map(int, sums)), tuple(map(int, squares)), images[:, 0].size)

    def __add__(self, other: PixelSums) -> PixelSums:
        return PixelSums(
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
            self.pixels + other.pixels,
        )

    def normalisation(self) -> Normalisation:
        """Mean and deviation in the scale of 0 to 1; a channel of one grey keeps a deviation of one step."""
        means = [total / self.pixels for total in self.sums]
        spreads = [
            math.sqrt(max(total / self.pixels - mean**2, 1.0)) for total, mean in zip(self.squares, means, strict=True)
        ]
        return Normalisation(tuple(mean / 255 for mean in means), tuple(spread / 255 for spread in spreads))
