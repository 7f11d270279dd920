"""An exchange: tasks that go out together, and their replies as they come in, checked, in the clients' order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fedproc.protocol.guard import Refused, admit
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Reply, Task

Consume = Callable[[Task, Payload], None]
LONGEST = 1e9  # seconds that anything can have taken
LONGEST_REASON = 500  # letters


def _sane(seconds: object) -> dict[str, float]:
    """The times of a reply, of which those that are none are left out: they only observe."""
    if not isinstance(seconds, Mapping):
        return {}
    numbers = {name: spent for name, spent in seconds.items() if isinstance(spent, (int, float))}
    return {str(name): float(spent) for name, spent in numbers.items() if 0 <= spent < LONGEST}


class Exchange:
    """The loop yields one; whoever drives it calls `take` once for each task, in any order.

    An accepted payload is consumed as soon as those of all tasks before it are in, and let go of: what is added up
    needs no list, and sums do not depend on who was first.
    """

    def __init__(self, tasks: Sequence[Task], consume: Consume | None = None, check: Consume | None = None) -> None:
        self.tasks = list(tasks)
        self._check = check  # raises Refused where an answer contradicts itself
        self.refused: dict[int, str] = {}  # by place among the tasks
        self.accepted: list[int] = []
        self.bytes_up = 0  # of all payloads that came in, refused ones too, what only observes aside
        self.seconds: dict[str, float] = {}
        self._consume = consume
        self._waiting: dict[int, Payload | None] = {}
        self._next = 0

    @property
    def kind(self) -> Kind:
        return self.tasks[0].kind

    def take(self, place: int, reply: Reply) -> bool:
        """Take the reply to the task at `place`; returns whether it was accepted."""
        task = self.tasks[place]
        if place < self._next or place in self._waiting:
            raise ValueError(f"task {place} has been answered already")
        self.spent(reply.seconds)
        payload: Payload | None = None
        try:
            if reply.payload is None:
                raise Refused(reply.refused or "no answer")
            self.bytes_up += reply.payload.bytes_without(task.expects.observe)
            admitted = admit(reply.payload, task.expects)
            if self._check is not None:
                self._check(task, admitted)
            payload = admitted
        except Refused as reason:
            self.refused[place] = str(reason)[:LONGEST_REASON]
        self._waiting[place] = payload
        while self._next in self._waiting:
            ready = self._waiting.pop(self._next)
            if ready is not None:
                self.accepted.append(self._next)
                if self._consume is not None:
                    self._consume(self.tasks[self._next], ready)
            self._next += 1
        return payload is not None

    def spent(self, seconds: Mapping[str, float]) -> None:
        """Note how long somebody was at work, by kind of work."""
        for name, spent in _sane(seconds).items():
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def share_clock(self, scale: float) -> None:
        """Turn seconds at work into a share of the wall clock."""
        self.seconds = {name: spent * scale for name, spent in self.seconds.items()}

    @property
    def answered(self) -> bool:
        """Whether every task has its reply."""
        return self._next == len(self.tasks)

    @property
    def bytes_down(self) -> int:
        return sum(task.payload.bytes for task in self.tasks)

    def reasons(self) -> dict[str, str]:
        """Why answers were refused, by the client's number."""
        return {str(self.tasks[place].client): reason for place, reason in sorted(self.refused.items())}
