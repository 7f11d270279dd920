"""Local training of clients side by side, and the choice of how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from fedproc import kernels
from fedproc.errors import InputError
from fedproc.kernels import cpu, cuda
from fedproc.lanes.executor import Executor, LaneError
from fedproc.lanes.local import Outcome
from fedproc.lanes.serial import SerialExecutor
from fedproc.lanes.setting import Bank, ClientData, Job, Setting
from fedproc.lanes.share import Share, cores
from fedproc.lanes.stacked import StackedExecutor, check_stackable
from fedproc.lanes.streamed import StreamedExecutor

__all__ = [
    "HEAVY",
    "Bank",
    "ClientData",
    "Executor",
    "Job",
    "LaneError",
    "Outcome",
    "Setting",
    "Share",
    "choose",
    "cores",
    "resolve_precision",
    "using_precision",
]

HEAVY = 5e9  # operations of a forward batch from which one client alone keeps a GPU busy
STREAMS = 5  # clients side by side of a network that heavy: measured, ResNet-50, H200
MOST_STREAMS = 32  # that torch has; lanes that shared one would get into each other's way
COPIES = 10  # of a lane's parameters that training holds: weights, start, velocity, gradients, client state
PASSES = 4  # of its layers' values: forward, backward, and what kernels lay out in between


def resolve_precision(precision: str, device: torch.device, executor: str, dtype: str = "float32") -> str:
    """How float32 is multiplied: with all bits, as tf32 (on a GPU), or as bf16; auto follows the executor. Products of
    float64 are never shortened.
    """
    on_gpu = device.type == "cuda"
    if dtype == "float64" and precision == "bf16":
        raise InputError("--precision bf16: is for --dtype float32, and these runs have float64; use auto or fp32")
    if precision == "auto":
        return "fp32" if not on_gpu else "bf16" if executor == "streamed" and dtype != "float64" else "tf32"
    if precision == "bf16" and not on_gpu:
        if executor != "serial":
            raise InputError(f"--precision bf16: on a CPU it is for serial lanes, not {executor} ones")
        if (reason := cpu.without_bf16()) is not None:
            raise InputError(f"--precision bf16: would be slower than fp32 here: {reason}; use auto or fp32")
    elif precision != "fp32" and not on_gpu:
        raise InputError(f"--precision {precision}: is for a GPU, and the device is {device}; use auto or fp32")
    return precision


@contextmanager
def using_precision(precision: str) -> Iterator[None]:
    """Products are formed so as long as this lasts: what torch and our kernels did before, they do again after it."""
    before = (kernels.precision(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    kernels.set_precision(precision)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        kernels.set_precision(before[0])
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[1:]


def choose(
    kind: str,
    lanes: int | str,
    threads: int | None,
    settings: Sequence[Setting],
    cohort: int,
    share: Share | None = None,
) -> Executor:
    """The executor by name, or the one that suits device and network, with lanes that suit its memory.

    On a GPU: stacked for networks of which one client leaves it idle, streamed for larger ones. On a CPU: serial.
    `threads` are those that an executor had before, of serial lanes each one's. `cohort` is the most clients that are
    ever at work together. `share` is this process's part of the machine where there are others beside it. A person's
    own module draws from torch's one global generator, so its clients run one after another where they cannot be
    stacked.
    """
    share = share or Share(cores())
    on_gpu = any(setting.device.type == "cuda" for setting in settings)
    foreign = any(setting.spec.foreign for setting in settings)
    if kind == "stacked":
        for setting in _different(settings):
            check_stackable(setting)
    elif kind == "streamed" and foreign:
        raise InputError("--executor streamed: a network of your own cannot be captured safely; use stacked or serial")
    elif kind == "auto":
        kind = _suitable(settings, on_gpu, foreign)
    if kind == "stacked":
        count = min(cohort, _room(settings, share.memory)) if lanes == "auto" else int(lanes)
        stacked = StackedExecutor(count, threads or share.cores)
        stacked.fixed = lanes != "auto"
        simple = any(setting.spec.name == "simple-cnn" for setting in settings)
        if on_gpu and (reason := kernels.missing()) is not None:
            stacked.notes.append(f"without own kernels, on torch's grouped convolutions: {reason}")
        elif on_gpu and simple and (reason := cuda.missing()) is not None:
            stacked.notes.append(f"without the kernels of the whole simple CNN, layer by layer: {reason}")
        return stacked
    if kind == "streamed":
        if lanes != "auto" and int(lanes) > MOST_STREAMS:
            raise InputError(f"--lanes {lanes}: expected at most {MOST_STREAMS} with streamed lanes")
        return StreamedExecutor(min(STREAMS, cohort) if lanes == "auto" else int(lanes), threads or share.cores)
    if foreign and lanes not in ("auto", 1):
        raise InputError(f"--lanes {lanes}: a network of your own runs one client at a time, expected auto or 1")
    most = 1 if foreign or on_gpu else min(share.cores, cohort)
    count = most if lanes == "auto" else int(lanes)
    small = [not on_gpu and s.spec.name == "simple-cnn" and s.spec.dtype == torch.float32 for s in settings]
    reason = cpu.missing() if any(small) else None
    # with a second torch thread a lane of the small network was slower, up to four times (docs/speed.md)
    each = 1 if all(small) and reason is None else max(1, share.cores // count)
    serial = SerialExecutor(count, threads or each)
    if reason is not None:
        serial.notes.append(f"without own kernels, on torch's convolutions: {reason}")
    return serial


def _suitable(settings: Sequence[Setting], on_gpu: bool, foreign: bool) -> str:
    if not on_gpu:
        return "serial"
    if not foreign and any(setting.operations >= HEAVY for setting in _different(settings)):
        return "streamed"
    return "stacked" if all(_stackable(setting) for setting in _different(settings)) else "serial"


def _different(settings: Sequence[Setting]) -> list[Setting]:
    """One setting of each network."""
    return list({setting.spec: setting for setting in settings}.values())


def _room(settings: Sequence[Setting], part: float = 1.0) -> int:
    """Lanes that the free memory holds, or this process's part of all of it where that is less: the others' may not be
    taken yet.
    """
    lanes = []
    for setting in _different(settings):
        if setting.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(setting.device)
        else:
            free = total = 4 << 30
        free = min(free, int(part * total))
        params = sum(parameter.numel() for parameter in setting.network.parameters())
        held = setting.spec.dtype.itemsize * (COPIES * params + PASSES * setting.batch_size * setting.cost.values)
        lanes.append(int(0.6 * free / held))
    return max(1, min(lanes))


def _stackable(setting: Setting) -> bool:
    try:
        check_stackable(setting)
    except InputError:
        return False
    return True
