"""Trials in order: those that got further first, then by their mean score in the last rung that they finished."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedproc.sweep.space import Values


@dataclass(frozen=True)
class Trial:
    """A point of the space: what it sets, every searched option's value, and its scores in each rung by seed, None
    where a run diverged or failed.
    """

    number: int
    sets: Values
    values: Values
    scores: tuple[dict[int, float | None], ...]

    def mean(self, rung: int) -> float | None:
        """Its score in a rung, where it was in it and every seed finished."""
        found = self.scores[rung] if rung < len(self.scores) else {}
        numbers = [score for score in found.values() if score is not None]
        return statistics.fmean(numbers) if found and len(numbers) == len(found) else None

    @property
    def broken(self) -> bool:
        """Whether a run of it diverged or failed."""
        return any(score is None for rung in self.scores for score in rung.values())

    @property
    def reached(self) -> int:
        """The last rung that it finished, from 0; -1: none."""
        return max((rung for rung in range(len(self.scores)) if self.mean(rung) is not None), default=-1)

    def written(self) -> dict[str, Any]:
        scores = [{str(seed): score for seed, score in rung.items()} for rung in self.scores]
        return {"trial": self.number, "sets": self.sets, "values": self.values, "scores": scores}


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The best first; what diverged or failed anywhere comes last, and of equals the earlier one is ahead."""

    def key(trial: Trial) -> tuple[bool, int, float, int]:
        return trial.broken, -trial.reached, -(trial.mean(trial.reached) or 0.0), trial.number

    return sorted(trials, key=key)


def winner(trials: Sequence[Trial]) -> Trial | None:
    """The best trial, if any finished."""
    first = next(iter(ranked(trials)), None)
    return first if first is not None and not first.broken else None
