"""Storage for images: in memory, or in a memory-mapped file where they would not fit."""

from __future__ import annotations

import os
import tempfile
from math import prod

import numpy as np

from fedproc.cache import cache_folder
from fedproc.data.images import Bytes


def limit() -> int:
    """Bytes of images that may be in memory: FEDPROC_IMAGE_MEMORY (in MiB), or half of what the machine has."""
    given = os.environ.get("FEDPROC_IMAGE_MEMORY")
    if given is not None and given.isdigit():
        return int(given) << 20
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def room(shape: tuple[int, ...]) -> Bytes:
    """An array of bytes. A mapped file has no name, so it is removed when the process ends."""
    if prod(shape) <= limit():
        return np.empty(shape, np.uint8)
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, prod(shape))  # a full disk fails here, not in the middle of a run
        return np.memmap(file, np.uint8, "r+", shape=shape)
