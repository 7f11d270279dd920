"""Which option mattered: how the trials' scores of the first rung differ between the values of one option.

A simple measure, and rough: trials differ in all options at once, so one may stand for another, and a few trials tell
little. Its p says how often a random assignment of the values to the same scores looks as strong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedproc.sweep.ranking import Trial
from fedproc.sweep.space import Domain, Range

SHUFFLES = 2000
PARTS = 3  # that a range's values are put into by size
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Importance:
    """Of one option: its values (or parts of a range) with the number of trials and their mean score, the gap between
    the best and the worst mean, the share of the scores' variance that it explains, corrected for the number of values
    (epsilon squared; None where each value was tried once), and p.
    """

    option: str
    means: dict[str, tuple[int, float]]
    gap: float
    share: float | None
    p: float


def importance(option: str, domain: Domain, trials: Sequence[Trial], seed: int = 0) -> Importance | None:
    """None where the trials have one value, or too few finished."""
    finished = [(trial.values[option], score) for trial in trials if (score := trial.mean(0)) is not None]
    labels = grouped([value for value, _ in finished], domain)
    scores = np.array([score for _, score in finished])
    names = list(dict.fromkeys(labels))
    if len(names) < 2 or len(scores) < 3:
        return None
    groups = np.array([names.index(label) for label in labels])
    between, within = _squares(groups, scores, len(names))
    freedom = len(scores) - len(names)
    total = between + within
    share = None
    if freedom > 0 and total > 0:
        share = max(0.0, (between - (len(names) - 1) * within / freedom) / total)
    rng = np.random.default_rng(seed)
    as_strong = sum(
        _squares(rng.permutation(groups), scores, len(names))[0] >= between * (1 - 1e-9) for _ in range(SHUFFLES)
    )
    means = {name: (int((groups == k).sum()), float(scores[groups == k].mean())) for k, name in enumerate(names)}
    gap = max(mean for _, mean in means.values()) - min(mean for _, mean in means.values())
    return Importance(option, means, gap, share, (1 + as_strong) / (1 + SHUFFLES))


def grouped(values: Sequence[object], domain: Domain) -> list[str]:
    """What each value counts as: itself, or of many numbers of a range, the lowest, middle or highest part."""
    if not isinstance(domain, Range) or len(set(values)) <= PARTS:
        return [shown(value) for value in values]
    numbers = [float(str(value)) for value in values]
    order = sorted(set(numbers))
    parts = [order[(k * len(order)) // PARTS : ((k + 1) * len(order)) // PARTS] for k in range(PARTS)]
    name = {number: f"{part[0]:g} to {part[-1]:g}" for part in parts for number in part}
    return [name[number] for number in numbers]


def shown(value: object) -> str:
    """A value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _squares(groups: npt.NDArray[np.int64], scores: Floats, count: int) -> tuple[float, float]:
    """Sums of squares between groups and within them."""
    sums, sizes = np.bincount(groups, scores, count), np.bincount(groups, minlength=count)
    between = float((sums**2 / sizes).sum() - scores.sum() ** 2 / len(scores))
    whole = float(((scores - scores.mean()) ** 2).sum())
    return max(0.0, between), max(0.0, whole - between)
