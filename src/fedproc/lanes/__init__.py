"""Local training of clients side by side, and the choice of how."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import torch

from fedproc import kernels
from fedproc.errors import InputError
from fedproc.lanes.serial import Outcome, SerialExecutor
from fedproc.lanes.setting import Bank, Job, Setting
from fedproc.lanes.stacked import StackedExecutor, check_stackable
from fedproc.lanes.task import SERVER, Answer, Kind, Task

__all__ = ["SERVER", "Answer", "Bank", "Executor", "Job", "Kind", "Setting", "Task", "choose", "set_precision"]


class Executor(Protocol):
    """Does jobs; `lanes` of them side by side with `threads` torch threads each."""

    name: str
    lanes: int
    threads: int

    def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Answers in the order of the jobs, each with what its client would keep."""

    def close(self) -> None:
        """Let go of threads."""


def set_precision(precision: str) -> None:
    """How a GPU multiplies float32: with all bits, or as tf32."""
    kernels.set_precision("tf32" if precision == "auto" else precision)
    short = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = short
    torch.backends.cudnn.allow_tf32 = short


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(kind: str, lanes: int | str, threads: int | None, settings: Sequence[Setting], cohort: int) -> Executor:
    """The executor by name, or the one that suits the device: stacked on a GPU, serial on a CPU.

    `cohort` is the most clients that are ever at work together. A person's own module draws from torch's
    one global generator, so its clients run one after another.
    """
    on_gpu = any(setting.device.type == "cuda" for setting in settings)
    foreign = any(setting.spec.foreign for setting in settings)
    if kind == "stacked":
        for setting in settings:
            check_stackable(setting)
    elif kind == "auto":
        kind = "stacked" if on_gpu and all(_stackable(setting) for setting in settings) else "serial"
    if kind == "stacked":
        return StackedExecutor(cohort if lanes == "auto" else int(lanes), threads or cores())
    if foreign and lanes not in ("auto", 1):
        raise InputError(f"--lanes {lanes}: a network of your own runs one client at a time, expected auto or 1")
    most = 1 if foreign or on_gpu else min(cores(), cohort)
    count = most if lanes == "auto" else int(lanes)
    return SerialExecutor(count, threads or max(1, cores() // count))


def _stackable(setting: Setting) -> bool:
    try:
        check_stackable(setting)
    except InputError:
        return False
    return True
