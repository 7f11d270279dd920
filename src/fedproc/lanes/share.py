"""What of the machine one process may use: all of it, or its part beside other workers."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Cores, and the part of a GPU's memory."""

    cores: int
    memory: float = 1.0


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
