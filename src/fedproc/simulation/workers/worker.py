"""What runs in a worker's process: groups of runs, one after the other, as the driver hands them over.

Commands come on standard input, the first of them where to work and which images there are; events go to a file
descriptor of their own; what is printed goes to the worker's log.
Where the driver ends, the worker does at once: its runs are continued from their checkpoints.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedproc.simulation.workers.messages import Message, encoded

if TYPE_CHECKING:
    from fedproc.simulation.drive import Run
    from fedproc.simulation.interrupt import Interrupt
    from fedproc.simulation.place import Place
    from fedproc.simulation.preparation import Library
    from fedproc.simulation.watching import Watched

ALIVE_EVERY = 5.0
PR_SET_PDEATHSIG = 1
ORPHAN = 3  # exit code of a worker whose driver is gone


class Driver:
    """The driver as its worker knows it."""

    def __init__(self, events: int) -> None:
        self.commands: queue.Queue[Message] = queue.Queue()
        self._events = events
        self._one_at_a_time = threading.Lock()
        for body in (self._listen, self._live):
            threading.Thread(target=body, daemon=True).start()

    def send(self, message: Message) -> None:
        data = memoryview(encoded(message))
        with self._one_at_a_time:
            while data:
                data = data[os.write(self._events, data) :]

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            self.commands.put(json.loads(line))
        os._exit(0)  # the driver has nothing more to do, or is gone

    def _live(self) -> None:
        pause = threading.Event()
        with suppress(OSError):
            while not pause.wait(ALIVE_EVERY):
                self.send({"event": "alive"})


class Sender(Protocol):
    """Whatever brings messages to the driver."""

    def send(self, message: Message) -> None: ...


class Reporter:
    """Tells the driver what becomes of a group's runs."""

    def __init__(self, driver: Sender, group: int) -> None:
        self._driver, self._group = driver, group
        self._sent: dict[str, int] = {}
        self.began = False

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        self.began = True
        self._sent = {run.label: len(run.records) for run in runs}
        states = {run.label: {**_state(run), "records": list(run.records)} for run in runs}
        self._driver.send(
            {"event": "begun", "group": self._group, "about": about, "notes": list(notes), "runs": states}
        )

    def update(self, run: Watched) -> None:
        new = list(run.records[self._sent[run.label] :])
        self._sent[run.label] += len(new)
        self._driver.send(
            {"event": "update", "group": self._group, "label": run.label, **_state(run), "records": new}
        )  # fmt: skip

    def end(self) -> None: ...

    def done(self, runs: Sequence[Run]) -> None:
        """The group is done; of one in which nothing was left to do, what there is is said now."""
        if not self.began:
            states = {run.label: _over(run) for run in runs}
            self._driver.send({"event": "begun", "group": self._group, "about": "", "notes": [], "runs": states})
        self._driver.send({"event": "done", "group": self._group})


def _over(run: Run) -> Message:
    """Where a run is that was found finished."""
    found: Message = {"round": len(run.metrics), "notes": [], "over": True, "records": run.metrics}
    if run.result["status"] != "finished":
        found["ended"] = {name: run.result[name] for name in ("status", "round", "reason")}
    return found


def _state(run: Watched) -> Message:
    """Where a run is; its notes are the driver's from here on."""
    from fedproc.errors import Diverged

    notes = list(run.notes)
    run.notes.clear()
    found: Message = {"round": run.round, "notes": notes, "over": run.result is not None}
    if run.ended is not None:
        status = "diverged" if isinstance(run.ended, Diverged) else "failed"
        found["ended"] = {"status": status, "round": run.ended.round, "reason": run.ended.reason}
        found["ended"]["trace"] = getattr(run.ended, "trace", "")
    return found


def main(events: int, parent: int) -> None:
    faulthandler.enable()
    die_with(parent)
    driver = Driver(events)

    import torch  # from here on the driver is listened to

    import fedproc.simulation.drive  # noqa: F401  # what is slow to load, while the driver still prepares
    from fedproc.simulation.interrupt import Interrupt
    from fedproc.simulation.place import Place
    from fedproc.simulation.preparation import Library
    from fedproc.simulation.workers.images import taken

    interrupt = Interrupt()
    signal.signal(signal.SIGTERM, lambda number, frame: interrupt.request())
    given = driver.commands.get()
    for name, value in given["environment"].items():  # CUDA reads it when it is first used
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    place = Place.of(given["place"])
    torch.set_num_threads(place.share.cores)
    library = Library()
    taken(library, given["images"])
    try:
        while True:
            command = driver.commands.get()
            keep_to(place, command)
            train(command, driver, library, place, interrupt)
    except KeyboardInterrupt:
        os._exit(130)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # at once: what is broken may be the GPU


def keep_to(place: Place, command: Message) -> None:
    """Take no more of a GPU's memory than this worker's part."""
    import torch

    from fedproc.assembly import resolve_device

    named = place.device or next(iter(command["runs"].values()))["experiment"]["device"]
    device = resolve_device(named)
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(place.share.memory, device.index)


def train(command: Message, driver: Sender, library: Library, place: Place, interrupt: Interrupt) -> None:
    """Train a group. What is wrong with the input, or with the disk, is the driver's to say; everything else ends this
    process, and the driver hands the group on.
    """
    from fedproc.errors import InputError, RunError, with_flags
    from fedproc.experiment import Experiment
    from fedproc.objects import Own
    from fedproc.simulation.drive import run_all

    group = int(command["group"])
    experiments = {
        label: (Experiment(Own.of(run["own"]), **run["experiment"]), Path(run["path"]) if run["path"] else None)
        for label, run in command["runs"].items()
    }
    reporter = Reporter(driver, group)
    try:
        runs = run_all(experiments, watcher=reporter, interrupt=interrupt, library=library, place=place)
    except (InputError, RunError) as error:
        kind = "input" if isinstance(error, InputError) else "run"
        driver.send({"event": "refused", "group": group, "kind": kind, "text": with_flags(error)})
    else:
        reporter.done(runs)


def die_with(driver: int) -> None:
    """End when the driver's process does: on Linux at once, elsewhere when its pipe is found closed."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != driver:
        os._exit(ORPHAN)
