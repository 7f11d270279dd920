"""Paired comparison over seeds: the difference, its certainty, and the detectable difference (80 % power).

Runs of one seed share data, partition, initial weights and batch order, so methods are compared seed by seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CONFIDENCE = 0.95
POWER = 0.8
SAME = 1e-9  # accuracies are shares of samples: closer ones differ only by rounding


@dataclass(frozen=True)
class Paired:
    """A row's difference to the reference over the seeds that both finished, with its 95 % interval, the p of a
    two-sided paired t-test, that p corrected by Holm over all rows, and the smallest true difference that is
    detectable with as many seeds at 80 % power (None of differences without any spread).
    """

    seeds: tuple[int, ...]
    difference: float
    low: float
    high: float
    p: float
    corrected: float
    detectable: float | None

    @property
    def verdict(self) -> str:
        """An interval that holds 0 shows no difference; one that does not may still be chance among many tests. A
        difference that is the same for all seeds has no spread to be tested against.
        """
        if self.low == self.high and self.difference != 0:
            return "same for all seeds, no test"
        if self.low <= 0 <= self.high:
            return "no difference seen"
        word = "better" if self.difference > 0 else "worse"
        return word if self.corrected < 1 - CONFIDENCE else f"{word} (not after Holm)"


def compare(rows: Mapping[str, Mapping[int, float]], reference: str) -> dict[str, Paired]:
    """Each row against the reference; `rows` holds a number for each seed. Rows with fewer than two seeds in common
    are left out.
    """
    base = rows.get(reference, {})
    found = {
        label: one
        for label, values in rows.items()
        if label != reference and (one := _paired(values, base)) is not None
    }
    corrected = holm({label: one.p for label, one in found.items()})
    return {
        label: Paired(one.seeds, one.difference, one.low, one.high, one.p, corrected[label], one.detectable)
        for label, one in found.items()
    }


def _paired(values: Mapping[int, float], base: Mapping[int, float]) -> Paired | None:
    from scipy import special  # here, since commands that compare nothing need not wait for it

    seeds = tuple(seed for seed in values if seed in base)
    count = len(seeds)
    if count < 2:
        return None
    differences = np.array([values[seed] - base[seed] for seed in seeds])
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(count)
    if np.ptp(differences) < SAME:  # there is no spread to test against
        mean = 0.0 if abs(mean) < SAME else mean
        return Paired(seeds, mean, mean, mean, 1.0, 1.0, None)
    bound = t_quantile((1 + CONFIDENCE) / 2, count - 1)
    p = float(2 * special.stdtr(count - 1, -abs(mean) / error))
    detectable = float(special.nctdtrinc(count - 1, 1 - POWER, bound)) * error
    return Paired(seeds, mean, mean - bound * error, mean + bound * error, p, p, detectable)


def half_interval(deviation: Any, count: int) -> Any:
    """Half the 95 % interval of a mean over `count`, of one sample deviation or an array of them."""
    return t_quantile((1 + CONFIDENCE) / 2, count - 1) * deviation / math.sqrt(count)


def t_quantile(share: float, freedom: int) -> float:
    """The quantile of a t distribution. (scipy.stats would take a second to import.)"""
    from scipy import special

    return float(special.stdtrit(freedom, share))


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """p corrected for as many tests as there are (Holm 1979)."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for place, label in enumerate(sorted(values, key=lambda label: values[label])):
        largest = max(largest, min(1.0, (len(values) - place) * values[label]))
        corrected[label] = largest
    return {label: corrected[label] for label in values}
