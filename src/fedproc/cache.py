"""The folder that caches downloads, decoded images and compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pooch


def cache_folder() -> Path:
    """FEDPROC_CACHE if set, else the system's place for caches."""
    return Path(os.environ.get("FEDPROC_CACHE") or pooch.os_cache("fedproc"))
