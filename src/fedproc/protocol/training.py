"""What becomes of the answers to a round's training: summed up as they come in, in the clients' order; or held until
all are there, where a method aligns them or a robust merge looks at all of them; or added up privately, so that what
follows sees one answer that stands for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedproc.protocol.agreement import Held
from fedproc.protocol.diagnostics import Diagnostics
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.plan import Plan
from fedproc.protocol.server_half import Answer, PrivateSum
from fedproc.protocol.sums import TrainingSums, mean_share
from fedproc.protocol.task import SERVER, Task
from fedproc.protocol.weights import Weights


class TrainingAnswers:
    """The answers of those that were asked, who have so many `samples` each. `own` is the method's state, `starting`
    what clients set out from, of the weights that they share; `returns`: these come back. With `diagnose`, class means
    are there for the diagnostics alone.
    """

    def __init__(
        self,
        plan: Plan,
        own: Tensors,
        starting: Weights,
        samples: Mapping[int, int],
        settings: Mapping[str, float],
        *,
        returns: bool,
        diagnostics: Diagnostics,
        diagnose: bool,
        private: PrivateSum | None,
    ) -> None:
        self._plan, self._own, self._starting, self._settings = plan, own, starting, settings
        self._returns, self._diagnostics, self._diagnose, self._private = returns, diagnostics, diagnose, private
        counts = list(samples.values())
        self._by_samples = dict(zip(samples, mean_share(counts), strict=True)) if counts else {}
        self._by_method = dict(zip(samples, plan.method.shares(counts), strict=True)) if counts else {}
        self._aligns = plan.method.aligns and returns
        self._waiting: list[tuple[Task, Payload]] = []
        self._collected: Tensors = {}
        merge = plan.merge.begin(starting.params, plan.method.momentum)
        self.sums = TrainingSums(starting, merge, plan.batch_size)
        self.privacy: Tensors = {}  # the state of privacy after the round

    def add(self, task: Task, answer: Payload) -> None:
        """Take an accepted answer."""
        if self._private is not None:
            self._private.add(answer)
        elif self._aligns or self._plan.rule is not None:
            self._waiting.append((task, answer))
        else:
            self._collect(task, answer)

    def settled(self) -> Tensors:
        """What the method has collected when all answers are in."""
        if self._private is not None:  # also where nobody was asked
            answer, self.privacy = self._private.result()
            self.sums.add(answer, 1.0, 1.0)
            seen = self._seen(SERVER, answer, 1.0, self._private.clients)
            self._collected = self._plan.method.collect(self._own, self._collected, seen)
        waiting = self._aligned() if self._aligns and self._waiting else self._waiting
        rule = self._plan.rule
        if rule is None:
            for task, answer in waiting:
                self._collect(task, answer)
        else:
            held = Held(rule, self._starting.tensors(), self._plan.method.averages())
            for task, answer in waiting:
                held.add(task, answer)
            for task, own, answer in held.agreed():
                self._collect(task, answer, own)
        return self._collected

    def _aligned(self) -> list[tuple[Task, Payload]]:
        seen = [self._seen(task.client, answer, self._by_method[task.client]) for task, answer in self._waiting]
        found = zip(self._waiting, self._plan.method.align(seen), strict=True)
        return [(task, replace(answer, tensors=each.tensors)) for (task, answer), each in found]

    def _seen(self, client: int, answer: Payload, share: float, clients: float = 1.0) -> Answer:
        counts = answer.counts["samples"], answer.counts["steps"]
        return Answer(client, *counts, share, answer.tensors, self._starting.tensors(), self._settings, clients)

    def _collect(self, task: Task, answer: Payload, own: Payload | None = None) -> None:
        """Sum up an answer; `own` is what it was before a robust merge."""
        share = self._by_method[task.client]
        self.sums.add(answer, share, self._by_samples[task.client], own)
        if self._returns:
            seen = self._seen(task.client, answer, share)
            self._collected = self._plan.method.collect(self._own, self._collected, seen)
        self._diagnostics.count(task.client, answer)
        if self._diagnose:
            shown = answer if self._plan.shared is None else own or answer  # of models of their own, their own means
            self._diagnostics.add(task.client, shown)
