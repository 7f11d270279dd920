"""Robust merging in the round loop: answers are held until all are in, and each is then given the value that a rule
makes of everybody's. Whatever a method sums or averages afterwards is a sum of equal values, so that the rule holds for
weights, prototypes and control variates alike, and no method has to know of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.task import Task
from fedproc.protocol.weights import NAMES

BY_CLASS = ("class_means", "class_covariances")  # one row for each class, of which those count who hold the class


class Rule(Protocol):
    """One tensor out of the clients', all of the same shape; `start` is what they set out from, None: zero."""

    def agreed(self, name: str, rows: Sequence[Tensor], start: Tensor | None) -> Tensor: ...


class Held:
    """The answers to one exchange. `sent` is what clients set out from, `averages` are further tensors of answers that
    the rule is for; what is neither stays each client's own: counts and losses.
    """

    def __init__(self, rule: Rule, sent: Tensors | None = None, averages: Sequence[str] = ()) -> None:
        self._rule, self._sent, self._averages = rule, sent or {}, tuple(averages)
        self._answers: list[tuple[Task, Payload]] = []

    def add(self, task: Task, payload: Payload) -> None:
        """Hold an accepted answer."""
        self._answers.append((task, payload))

    def agreed(self) -> Iterator[tuple[Task, Payload, Payload]]:
        """Each task with its own answer, and with the answer that counts."""
        if not self._answers:
            return
        common = self._common()
        for task, own in self._answers:
            tensors = {name: common.get(name, tensor) for name, tensor in own.tensors.items()}
            yield task, own, Payload(tensors, own.counts)

    def _common(self) -> Tensors:
        found: dict[str, Tensor] = {}
        for name in (*NAMES, *self._averages):
            rows = self._rows(name)
            if rows and rows[0].is_floating_point():
                found[name] = self._rule.agreed(name, rows, self._sent.get(name))
            elif rows:  # counters of batches
                found[name] = torch.stack(rows).sort(dim=0).values[(len(rows) - 1) // 2]
        for name in BY_CLASS:
            both = [own.tensors for _, own in self._answers if {name, "class_counts"} <= set(own.tensors)]
            if both:
                found[name] = self._by_class(name, both)
        return found

    def _rows(self, name: str) -> list[Tensor]:
        """Everybody's, where what only observes may be missing from some answers."""
        return [own.tensors[name] for _, own in self._answers if name in own.tensors]

    def _by_class(self, name: str, answers: Sequence[Tensors]) -> Tensor:
        held = torch.stack([own["class_counts"] for own in answers]) > 0
        common = torch.zeros_like(answers[0][name])
        for k, holders in enumerate(held.T.tolist()):
            own = [tensors[name][k] for tensors, holds in zip(answers, holders, strict=True) if holds]
            if own:
                common[k] = self._rule.agreed(name, own, None)
        return common
