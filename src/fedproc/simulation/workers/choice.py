"""How many workers there are, where each works, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproc.errors import InputError, meant
from fedproc.lanes import HEAVY, Share
from fedproc.simulation.place import Place
from fedproc.simulation.workers import cluster
from fedproc.simulation.workers.cluster import Cluster
from fedproc.simulation.workers.grouping import Work, imbalance

Asked = int | str | Cluster  # a number, auto, or a cluster's

UNDER_MPS = (7, 6, 8)  # workers on one GPU whose kernels run at the same time, the best first (benchmarks/workers.py)
WITHOUT_MPS = 1  # and where they would take turns
WORTH = 60.0  # seconds of work, as estimated, from which starting workers pays
GPU_SPEED = 15e12  # operations a second of one process, for that estimate: what was measured, simple CNN, H200
CORE_SPEED = 50e9  # of one core: about what was measured, simple CNN with own kernels
WORKER_MEMORY = 1 << 30  # bytes of main memory that a worker may need
SAVE_AFTER = 5.0  # seconds after which a worker's runs are saved again


@dataclass(frozen=True)
class Choice:
    """So many workers, spread over these devices (None: the experiments' own), and why so many. What is `obvious` goes
    without saying: too little to do for several.
    """

    workers: int
    reason: str
    devices: tuple[str | None, ...] = (None,)
    mps: bool = False
    obvious: bool = False

    def places(self, cores: int, runs_at_once: int, command: Sequence[str]) -> list[Place]:
        """What each worker has of the machine. Workers of a device share its memory."""
        found = []
        for number in range(self.workers):
            at = number % len(self.devices)
            beside = len(range(at, self.workers, len(self.devices)))
            share = Share(max(1, cores // self.workers), 1 / beside)
            found.append(
                Place(
                    share=share,
                    device=self.devices[at],
                    worker=number,
                    workers=self.workers,
                    runs_at_once=runs_at_once,
                    mps=self.mps,
                    command=tuple(command),
                    save_after=SAVE_AFTER,
                )
            )
        return found


def parsed(word: str, cluster_word: str | None = None, shared_lock: bool = False) -> Asked:
    """The values of --workers, --cluster and --shared-lock."""
    if word != "auto" and (not word.isdecimal() or int(word) < 1):
        hint = meant(word, ["auto"])
        raise InputError(f"--workers {word}: expected auto, or a whole number of at least 1{hint}")
    workers = word if word == "auto" else int(word)
    if cluster_word is not None:
        return cluster.parsed(cluster_word, workers, shared_lock)
    if shared_lock:
        raise InputError("--shared-lock: is for --cluster")
    return workers


def on_cpu(asked: Asked, works: Sequence[Work], cores: int, memory: int | None) -> Choice:
    """A process a core, where there is enough to do: serial lanes of one process wait for each other's Python."""
    busy = [work for work in works if work.operations > 0]
    if isinstance(asked, int):
        return Choice(max(1, min(asked, len(busy))), _requested(asked, len(busy)))
    seconds = sum(work.operations for work in busy) / (CORE_SPEED * cores)
    if seconds < WORTH or len(busy) < 2:
        return _too_little(seconds, len(busy))
    count = min(cores, len(busy))
    if memory is not None and count > max(1, memory // WORKER_MEMORY):
        count = max(1, memory // WORKER_MEMORY)
        return Choice(count, f"what {memory / 2**30:.1f} GiB of free memory hold")
    return Choice(count, f"one for each of {cores} cores" if count == cores else f"one for each of {len(busy)} runs")


def on_gpus(
    asked: Asked, works: Sequence[Work], devices: Sequence[str | None], start_mps: Callable[[int], str | None]
) -> Choice:
    """Several processes a GPU where their kernels run at the same time, which takes MPS: `start_mps` has it started for
    so many workers, or says why it cannot be. Several GPUs have at least one each.
    """
    busy = [work for work in works if work.operations > 0]
    most, gpus = max(1, len(busy)), tuple(devices)
    if isinstance(asked, int):
        count = min(asked, most)
        reason = None if count <= len(gpus) else start_mps(count)
        without = f"; they take turns, since there is no MPS: {reason}" if reason else ""
        mps = count > len(gpus) and reason is None
        return Choice(count, f"{_requested(asked, len(busy))}{without}", gpus[:count], mps)
    seconds = sum(work.operations for work in busy) / (GPU_SPEED * len(gpus))
    if seconds < WORTH or len(busy) < 2:
        return _too_little(seconds, len(busy))
    if any(work.forward >= HEAVY for work in busy):
        count = min(len(gpus), most)
        return Choice(count, "one for each GPU, which a client of this network keeps busy alone", gpus[:count])
    if most <= len(gpus):
        return Choice(most, "one for each run", gpus[:most])
    count = min((min(each * len(gpus), most) for each in UNDER_MPS), key=lambda count: imbalance(busy, count))
    reason = start_mps(count)
    if reason is None:
        why = "of 6 to 8 for each GPU it shares the work most evenly (7 was the best of 1 to 18 on an H200, tried once)"
        return Choice(count, why, gpus[:count], mps=True)
    count = min(WITHOUT_MPS * len(gpus), most)
    why = f"{WITHOUT_MPS} for each GPU was the best of 1 to 4 without MPS on an H200"
    return Choice(count, f"{why} ({reason})", gpus[:count])


def _too_little(seconds: float, runs: int) -> Choice:
    some = f"about {seconds:.0f} s of work are" if runs > 1 else f"{runs} run is"
    return Choice(1, f"{some} too little to start workers for", obvious=True)


def _requested(asked: int, runs: int) -> str:
    return "as requested" if asked <= runs else f"{asked} were requested, and there is something to do for {runs}"


def free_memory() -> int | None:
    """Bytes of main memory that can be had, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def wants_mps() -> bool:
    """FEDPROC_MPS=0 has no daemon started."""
    return os.environ.get("FEDPROC_MPS", "1") != "0"
