"""The folder that caches downloads, decoded images and compiled kernels."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """FEDPROC_CACHE if set, else the system's place for caches."""
    if chosen := os.environ.get("FEDPROC_CACHE"):
        return Path(chosen)
    return Path(platformdirs.user_cache_dir("fedproc"))
