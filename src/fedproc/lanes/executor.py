"""What every executor is: it does jobs, up to so many side by side, and hands on each outcome when it is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fedproc.errors import RunError, with_flags
from fedproc.lanes.local import Outcome
from fedproc.lanes.setting import Job
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Reply, Task

Done = Callable[[int, Outcome], None]  # the job's place, and what became of it


class Executor(Protocol):
    """Does jobs; up to `lanes` of them side by side with `threads` torch threads each."""

    name: str
    lanes: int
    threads: int
    notes: list[str]  # what a person should know of the choice, and of what changed on the way

    def execute(self, jobs: Sequence[Job], done: Done) -> None:
        """Do the jobs and call `done` once for each, in any order."""

    def close(self) -> None:
        """Let go of threads and tensors."""


class LaneError(RunError):
    """Something went wrong with these jobs: the places of all that it may concern, and what it was."""

    def __init__(self, places: Sequence[int], task: Task, error: Exception) -> None:
        self.places, self.error = list(places), error
        super().__init__(f"client {task.client}, round {task.round + 1}, {task.kind}: {with_flags(error)}")


def answered(payload: Payload, seconds: Mapping[str, float]) -> Outcome:
    """The outcome of a task that leaves a client's state as it is."""
    return Reply(payload, seconds=seconds), {}
