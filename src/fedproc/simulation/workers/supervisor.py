"""Hands groups of runs to workers, shows what they do as one, and hands on what a dead worker leaves."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedproc.errors import Diverged, Failed, InputError, RunError
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.watching import Record, Watcher, tell
from fedproc.simulation.workers.grouping import Group
from fedproc.simulation.workers.messages import Message
from fedproc.simulation.workers.process import Worker

DEATHS = 3  # in a row without a round done, after which a group is given up
PAUSE = 10.0  # seconds after the second of them, in which a GPU or a full machine may come to rest
SILENCE = 300.0  # seconds after which a worker that says nothing is taken for dead
TICK = 1.0
PATIENCE = 20.0  # seconds in which workers save and end when they are told to


@dataclass
class DistantRun:
    """A run in a worker's process, as watchers see it."""

    label: str
    rounds: int
    evaluated_on: str
    path: Path | None
    records: list[Record]
    round: int = 0
    notes: list[str] = field(default_factory=list)
    result: Record | None = None
    ended: Diverged | Failed | None = None

    def follow(self, message: Message) -> None:
        """Take in what the worker says of it."""
        self.round = int(message["round"])
        self.notes += message["notes"]
        if message["over"] and self.result is None:
            self.result = {"status": "finished"}
        ended = message.get("ended")
        if ended is not None:
            at, why = int(ended["round"]), ended["reason"]
            diverged = ended["status"] == "diverged"
            self.ended = Diverged(at, why) if diverged else Failed(at, why, ended.get("trace", ""))
            self.result = {"status": ended["status"]}


@dataclass
class _Seat:
    """A worker's place among the others: who has it, and what he does."""

    number: int
    worker: Worker | None = None
    group: Group | None = None
    heard: float = 0.0


class Supervisor:
    """Has the groups trained. `start` makes the worker of a seat, `order` says what a worker must know of a group, and
    `noted` is told what happens to workers.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[int], Worker],
        order: Callable[[Group], Message],
        runs: Mapping[str, DistantRun],
        watcher: Watcher,
        interrupt: Interrupt,
        noted: Callable[[Record], object] = lambda event: None,
    ) -> None:
        self._start, self._order, self._noted = start, order, noted
        self._runs, self._watcher, self._interrupt = runs, watcher, interrupt
        self._seats = [_Seat(number) for number in range(count)]
        self._queue: deque[Group] = deque()
        self._lost: list[str] = []  # why groups were given up
        self._told: set[str] = set()  # what groups have said of all their runs

    def _fill(self, seat: _Seat) -> None:
        seat.worker, seat.heard = self._start(seat.number), time.monotonic()
        self._noted({"event": "started", "worker": seat.number, "process": seat.worker.pid})

    def work(self, groups: Sequence[Group]) -> None:
        """Until all groups are done, or given up; then those that were are complained of."""
        self._queue = deque(groups)
        looked = time.monotonic()
        while True:
            self._interrupt.check()
            self._assign()
            if not self._queue and not any(seat.group for seat in self._seats):
                break
            busy = {seat.worker.fileno(): seat for seat in self._seats if seat.worker is not None}
            ready, _, _ = select.select(list(busy), [], [], TICK)
            for handle in ready:
                self._listen(busy[handle])
            now = time.monotonic()
            if now - looked > 10 * TICK:  # we were stopped ourselves: nobody is to blame for his silence
                for seat in self._seats:
                    seat.heard = now
            looked = now
            for seat in self._seats:
                if seat.worker is not None and now - seat.heard > SILENCE:
                    seat.worker.kill()
                    self._bury(seat, f"said nothing for {SILENCE:.0f} s")
        if self._lost:
            raise RunError("; ".join(self._lost))

    def _assign(self) -> None:
        """Groups that wait go to workers that have none, and to new ones where others are dead."""
        for seat in sorted(self._seats, key=lambda seat: seat.worker is None):
            ready = [group for group in self._queue if group.not_before <= time.monotonic()]
            if seat.group is None and ready:
                if seat.worker is None:
                    self._fill(seat)
                assert seat.worker is not None
                seat.group = ready[0]
                self._queue.remove(seat.group)
                self._noted({"event": "group", "worker": seat.number, "runs": seat.group.labels})
                seat.worker.send(self._order(seat.group))

    def _listen(self, seat: _Seat) -> None:
        assert seat.worker is not None
        try:
            messages = seat.worker.receive()
        except EOFError:
            self._bury(seat)
            return
        seat.heard = time.monotonic()
        for message in messages:
            self._take(seat, message)

    def _take(self, seat: _Seat, message: Message) -> None:
        group = seat.group
        if message["event"] == "alive" or group is None or message["group"] != group.number:
            return
        match message["event"]:
            case "begun":
                self._noted({"event": "begun", "worker": seat.number, "how": message["about"].rpartition("; ")[2]})
                new = [note for note in message["notes"] if note not in self._told]
                self._told.update(new)
                for label, state in message["runs"].items():
                    run = self._runs[label]
                    more = len(state["records"]) > len(run.records)  # of a worker that died before it told of them
                    run.records[:] = state["records"]
                    run.notes += [*group.said, *new]
                    new = []
                    run.follow(state)
                    self._watcher.update(run) if more else tell(self._watcher, run)
                group.said.clear()
                group.began = time.monotonic()
                group.rounds.clear()
            case "update":
                run = self._runs[message["label"]]
                run.records += message["records"]
                run.follow(message)
                if message["records"]:
                    group.deaths = 0
                    group.rounds[message["label"]] += len(message["records"])
                self._watcher.update(run)
            case "done":
                seat.group = None
                if seat.worker is not None and seat.worker.one_group:
                    seat.worker.wait(PATIENCE)
                    seat.worker = None
                self._noted({"event": "done", "worker": seat.number, "seconds_per_round": group.pace()})
            case "refused":
                seat.group = None
                raise (InputError if message["kind"] == "input" else RunError)(message["text"])

    def _bury(self, seat: _Seat, why: str | None = None) -> None:
        """A worker is dead: another takes its group over, unless too many have died in it."""
        worker, group = seat.worker, seat.group
        assert worker is not None
        if not worker.wait(5.0):
            worker.kill()
            worker.wait(5.0)
        seat.worker = seat.group = None
        why = why or worker.fate()
        fate = f"worker {seat.number} {why}"
        labels = group.labels if group else []
        self._noted({"event": "died", "worker": seat.number, "why": why, "runs": labels})
        if group is None:
            return
        group.deaths += 1
        if group.deaths < DEATHS:
            group.said.append(fate)
            group.not_before = time.monotonic() + (PAUSE if group.deaths > 1 else 0.0)
            self._queue.appendleft(group)
            return
        shown = ", ".join(labels[:4]) + (", ..." if len(labels) > 4 else "")
        words = worker.last_words()
        self._lost.append(
            f"{shown}: given up, since {DEATHS} workers in a row died before they had done a round; {fate}; the same "
            "command continues, with fewer --workers or more memory if that was it" + (f"\n{words}" if words else "")
        )

    def dismiss(self) -> None:
        """End all workers. Those that have a group save it first."""
        working = [seat.worker for seat in self._seats if seat.worker is not None]
        deadline = time.monotonic() + PATIENCE
        try:
            for seat in self._seats:
                if seat.worker is not None:
                    seat.worker.stop() if seat.group is not None else seat.worker.release()
            for worker in working:
                worker.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also where we are interrupted again
            for seat in self._seats:
                if seat.worker is not None and not seat.worker.wait(0.0):
                    seat.worker.kill()
                    seat.worker.wait(5.0)
                seat.worker = None
