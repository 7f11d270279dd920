"""What a person's own images say of themselves before one of them is opened: sites, and how many images each has."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproc.data import own
from fedproc.errors import InputError

SMALLEST_BATCH, LARGEST_BATCH = 8, 64
BATCHES = 6  # that the median client has at least
STEPS = 20  # that the median client takes in a round at least


@dataclass(frozen=True)
class Outline:
    """Training images in all, and of each site where the data name sites; whether test images are drawn of them."""

    images: int
    sites: dict[str, int]
    drawn: bool


def outline(name: str, test_fraction: float) -> Outline | None:
    """Of a folder or a manifest; None where they cannot be listed, which whoever reads them says in full. No seed
    matters: which images are kept for testing may depend on it, how the data are trained on may not.
    """
    try:
        found = own.find(Path(name), test_fraction, 0)
    except (InputError, OSError):
        return None
    sites = Counter(item.site for item in found.train if item.site is not None)
    return Outline(len(found.train), dict(sorted(sites.items())), found.drawn)


def batch_size_for(sizes: Sequence[float]) -> int:
    """The largest power of two of which the median client has enough whole batches."""
    median, size = statistics.median(sizes), LARGEST_BATCH
    while size > SMALLEST_BATCH and median < BATCHES * size:
        size //= 2
    return size


def epochs_for(sizes: Sequence[float], batch_size: int, usual: int) -> int:
    """The usual ones, or as many as give the median client enough steps per round."""
    steps = max(1, int(statistics.median(sizes)) // batch_size)
    return max(usual, -(-STEPS // steps))
