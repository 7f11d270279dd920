"""Paired comparison over seeds: the difference, its certainty, the detectable difference (80 % power), equivalence.

Runs of one seed share data, partition, initial weights and batch order, so methods are compared seed by seed. Tests
that belong together are a family: p is corrected by Holm over it, and what is detectable is said for Holm's strictest
step, the level at which a difference counts whatever the other tests show.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

CONFIDENCE = 0.95
POWER = 0.8
ENOUGH = 3  # seeds from which on there are intervals: of two a 95 % interval is 12.7 standard errors to each side
EQUAL = 0.005  # differences up to half a point count as none where equivalence is claimed
SAME = 1e-9  # accuracies are shares of samples: closer ones differ only by rounding

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Paired:
    """A row's difference to the reference over the seeds that both finished, of each seed and on average, with its 95 %
    interval (None of fewer than three seeds) and the p of a two-sided paired t-test. Over its family: that p corrected
    by Holm; the smallest true difference that as many seeds would show at Holm's strictest step with 80 % power, and
    between what it lies as the deviation is itself uncertain (95 %); and the p, corrected as well, of the two one-sided
    tests that it is within half a point.
    """

    seeds: tuple[int, ...]
    difference: float
    low: float | None
    high: float | None
    p: float
    corrected: float
    detectable: float | None = None
    detectable_low: float | None = None
    detectable_high: float | None = None
    equivalence: float = 1.0
    values: tuple[float, ...] = ()

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds, and a spread to test against."""
        return self.low is not None and self.low != self.high

    @property
    def verdict(self) -> str:
        """An interval that holds 0 shows no difference; one that does not may still be chance among many tests. Where
        the difference is shown to be within half a point, it says so. A difference that is the same for all seeds has
        no spread to be tested against, and is no test.
        """
        if self.low is None or self.high is None:
            return f"{len(self.seeds)} seeds, too few"
        if self.low == self.high:
            return "same for all seeds, no test" if self.difference else "the same"
        alike = self.equivalence < 1 - CONFIDENCE
        if self.low <= 0 <= self.high:
            return f"equal within {100 * EQUAL:g} points" if alike else "no difference seen"
        word = "better" if self.difference > 0 else "worse"
        word += "" if self.corrected < 1 - CONFIDENCE else " (not after Holm)"
        return word + (f", by less than {100 * EQUAL:g} points" if alike else "")


def compare(rows: Mapping[str, Mapping[int, float]], reference: str) -> dict[str, Paired]:
    """Each row against the reference, all of them one family; `rows` holds a number for each seed. Rows with fewer than
    two seeds in common are left out.
    """
    base = rows.get(reference, {})
    found = {
        label: one for label, values in rows.items() if label != reference and (one := paired(values, base)) is not None
    }
    return family(found)


def family(found: Mapping[Key, Paired]) -> dict[Key, Paired]:
    """The same differences as one family of tests."""
    tested = {key: one for key, one in found.items() if one.tested}
    corrected = holm({key: one.p for key, one in tested.items()})
    equivalent = holm({key: _equivalence(one.values) for key, one in tested.items()})
    made = {}
    for key, one in found.items():
        if key not in tested:
            made[key] = one
            continue
        low, middle, high = _detectable(one.values, len(tested))
        made[key] = replace(
            one,
            corrected=corrected[key],
            equivalence=equivalent[key],
            detectable=middle,
            detectable_low=low,
            detectable_high=high,
        )
    return made


def paired(values: Mapping[int, float], base: Mapping[int, float]) -> Paired | None:
    """One difference, not yet in a family; None of fewer than two seeds."""
    return of_differences({seed: value - base[seed] for seed, value in values.items() if seed in base})


def over_settings(found: Sequence[Paired]) -> Paired | None:
    """The mean of one row's differences over several settings: seed by seed, over the seeds that all of them have, so
    that what a seed has in common in all settings is not counted as many times.
    """
    seeds = [seed for seed in found[0].seeds if all(seed in one.seeds for one in found)]
    by_seed = [dict(zip(one.seeds, one.values, strict=True)) for one in found]
    return of_differences({seed: float(np.mean([values[seed] for values in by_seed])) for seed in seeds})


def of_differences(by_seed: Mapping[int, float]) -> Paired | None:
    """A mean of differences with its interval and p."""
    seeds, values = tuple(by_seed), tuple(by_seed.values())
    count = len(seeds)
    if count < 2:
        return None
    differences = np.array(values)
    mean, error = float(differences.mean()), _error(values)
    if count < ENOUGH:
        return Paired(seeds, mean, None, None, 1.0, 1.0, values=values)
    if np.ptp(differences) < SAME:  # there is no spread to test against
        mean = 0.0 if abs(mean) < SAME else mean
        return Paired(seeds, mean, mean, mean, 1.0, 1.0, values=values)
    half = t_quantile((1 + CONFIDENCE) / 2, count - 1) * error
    p = float(2 * _special().stdtr(count - 1, -abs(mean) / error))
    return Paired(seeds, mean, mean - half, mean + half, p, p, values=values)


def _error(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _detectable(values: Sequence[float], tests: int) -> tuple[float | None, float | None, float | None]:
    """The smallest true difference that a test at 5 % divided by the number of tests shows with 80 % power; before and
    after it what it is at the ends of the deviation's own 95 % interval.
    """
    freedom = len(values) - 1
    if np.ptp(values) < SAME:
        return None, None, None
    bound = t_quantile(1 - (1 - CONFIDENCE) / 2 / tests, freedom)
    middle = float(_special().nctdtrinc(freedom, 1 - POWER, bound)) * _error(values)
    ends = [
        math.sqrt(freedom / _special().chdtri(freedom, share)) for share in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
    ]
    return middle * ends[0], middle, middle * ends[1]


def _equivalence(values: Sequence[float]) -> float:
    """The larger p of two one-sided tests: that the difference is above -EQUAL, and below EQUAL."""
    mean, error, freedom = float(np.mean(values)), _error(values), len(values) - 1
    if np.ptp(values) < SAME:
        return 1.0
    return float(_special().stdtr(freedom, (abs(mean) - EQUAL) / error))


def half_interval(deviation: Any, count: int) -> Any:
    """Half the 95 % interval of a mean over `count`, of one sample deviation or an array of them."""
    return t_quantile((1 + CONFIDENCE) / 2, count - 1) * deviation / math.sqrt(count)


def t_quantile(share: float, freedom: int) -> float:
    """The quantile of a t distribution. (scipy.stats would take a second to import.)"""
    return float(_special().stdtrit(freedom, share))


def holm(values: Mapping[Key, float]) -> dict[Key, float]:
    """p corrected for as many tests as there are (Holm 1979)."""
    corrected: dict[Key, float] = {}
    largest = 0.0
    for place, label in enumerate(sorted(values, key=lambda label: values[label])):
        largest = max(largest, min(1.0, (len(values) - place) * values[label]))
        corrected[label] = largest
    return {label: corrected[label] for label in values}


def _special() -> Any:
    from scipy import special  # here, since commands that compare nothing need not wait for it

    return special
