"""What to do when a device is out of memory: take half the lanes and go on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from fedproc.errors import RunError

Result = TypeVar("Result")


class Laned(Protocol):
    lanes: int
    notes: list[str]

    def drop(self) -> None:
        """Let go of what can be made again."""


def halving(work: Callable[[], Result], executor: Laned) -> Result:
    """Do the work; each time memory runs out, with half the lanes. Jobs start from what they were handed, so nothing
    that was begun is lost.
    """
    while True:
        try:
            return work()
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
        if executor.lanes == 1:
            raise RunError(f"one client alone does not fit into the device's memory ({reason}); use --device cpu")
        executor.lanes //= 2
        executor.notes.append(f"out of memory, from here on {executor.lanes} lanes")
        executor.drop()
        gc.collect()
        torch.cuda.empty_cache()
