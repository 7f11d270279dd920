"""A client as an object: its data, the client's half of the method, and its state as a transaction.

The simulator has many sites over one pool of lanes; in a federation each process has one; tests have toy ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from fedproc.errors import MethodError
from fedproc.lanes.evaluate import HeldOut
from fedproc.lanes.executor import Executor, LaneError
from fedproc.lanes.local import Outcome
from fedproc.lanes.rehearsal import try_out
from fedproc.lanes.setting import ClientData, Job, Setting
from fedproc.protocol import postprocess
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.postprocess import Postprocessor
from fedproc.protocol.task import Kind, Reply, Task
from fedproc.protocol.weights import Weights

WITHOUT_LANES = frozenset({Kind.DESCRIBE, Kind.CLASS_COUNTS})


class States(Protocol):
    """Where clients' states are kept: those that count, and those of this round that will once it is over."""

    def latest(self, client: int) -> Tensors | None:
        """The state with what was accepted in this round, or None before the client's first accepted answer."""

    def commit(self, client: int, round_number: int, state: Tensors) -> None:
        """Note a state whose answer was accepted."""


class OwnState:
    """The state of the one client of a process. What a training ends in is set aside; it counts once the server says,
    by the next task's `last_accepted`, that its answer was accepted, and is forgotten if it says otherwise.
    """

    def __init__(self) -> None:
        self._state: Tensors | None = None
        self._aside: tuple[int, Tensors] | None = None

    def latest(self, client: int) -> Tensors | None:
        return self._state

    def commit(self, client: int, round_number: int, state: Tensors) -> None:
        self._aside = (round_number, state)

    def settle(self, last_accepted: int) -> None:
        """Commit what was set aside if its round was accepted, or roll it back."""
        if self._aside is not None and self._aside[0] == last_accepted:
            self._state = self._aside[1]
        self._aside = None


class Site:
    """One client. `fresh(n)` makes the n-th other set of initial weights."""

    def __init__(
        self,
        number: int,
        name: str,
        setting: Setting,
        data: ClientData | None,
        states: States,
        held_out: HeldOut | None = None,
        fresh: Callable[[int], Weights] | None = None,
        postprocessors: Sequence[Postprocessor] = (),
        test: HeldOut | None = None,
    ) -> None:
        self.number, self.name = number, name
        self._test = test  # where the held-out images are validation images
        self.setting, self.data, self.held_out = setting, data, held_out
        self._states, self._fresh, self._postprocessors = states, fresh, postprocessors

    def describe(self, task: Task) -> Reply:
        """How many samples there are, or of each class how many: what a site answers without lanes."""
        if self.data is None:
            return Reply(None, "no training data")
        counts = {} if task.kind is Kind.DESCRIBE else {"class_counts": self.data.class_counts.to(torch.int64)}
        found = Payload(counts, {"samples": len(self.data)})
        return Reply(postprocess.send(self._postprocessors, task, found))

    def job(self, task: Task) -> Job:
        """What lanes need to do the task; a method's hooks are tried out before the first training."""
        if isinstance(self._states, OwnState):
            self._states.settle(task.last_accepted)
        held_out = self._test if task.on_test else self.held_out
        job = Job(task, self.setting, self.data, lambda: self.state(task), held_out)
        if task.kind is Kind.TRAIN:
            try_out(job)
        return job

    def state(self, task: Task) -> Tensors:
        """The client's state, or the one it begins with."""
        found = self._states.latest(self.number)
        if found is None:
            found = self.setting.method.first_state(self.number, Weights.of(task.payload.tensors), self._fresh_weights)
        return found

    def _fresh_weights(self, number: int) -> Weights:
        if self._fresh is None:
            raise ValueError("this site cannot make other initial weights")
        return self._fresh(number)

    def reply(self, task: Task, outcome: Outcome) -> Reply:
        """What is sent of what was computed."""
        found = outcome[0]
        if found.payload is None:
            return found
        payload = found.payload
        if task.kind is Kind.EVALUATE:  # lanes find more than every server asks for
            asked = {name: tensor for name, tensor in payload.tensors.items() if name in task.expects.tensors}
            payload = Payload(asked, payload.counts)
        sent = postprocess.send(self._postprocessors, task, payload)
        return Reply(sent) if self._quiet else Reply(sent, found.refused, found.seconds)

    @property
    def _quiet(self) -> bool:
        return any(each.quiet for each in self._postprocessors)

    def accepted(self, task: Task, outcome: Outcome) -> None:
        """The answer was accepted (or, where that shows only later, was sent): its state is the client's."""
        if task.kind is Kind.TRAIN and outcome[1]:
            self._states.commit(self.number, task.round, outcome[1])

    def do(self, task: Task, executor: Executor) -> Reply:
        """Do one task and answer it, for whoever has this site alone."""
        if task.kind in WITHOUT_LANES:
            return self.describe(task)
        found: list[Outcome] = []
        try:
            executor.execute([self.job(task)], lambda place, outcome: found.append(outcome))
        except (LaneError, MethodError) as error:
            return Reply(None, "the task failed" if self._quiet else str(error))
        self.accepted(task, found[0])
        return self.reply(task, found[0])
