"""Epsilon of rounds of the Gaussian mechanism on Poisson cohorts, by the library dp-accounting.

Neighbours differ by one client (add or remove). Privacy loss distributions are composed where that is feasible; where
there is next to no noise, Renyi differential privacy tells epsilon, a little too large.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from fedproc.errors import InputError

INTERVAL = 1e-3  # of the privacy losses: a hundredth of a percent of epsilon 10, and fast enough for every round
LARGEST = 2000.0  # a first guess at epsilon up to which distributions are composed
STEP = 1e-3  # of noise multipliers that are found


def epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """Of `rounds` rounds; infinite without noise."""
    if rounds == 0:
        return 0.0
    if noise == 0:
        return math.inf
    concentrated = rounds / (2 * noise**2)
    if concentrated + 2 * math.sqrt(concentrated * math.log(1 / delta)) > LARGEST:
        return _by_renyi(noise, rate, rounds, delta)
    return float(_one_round(noise, rate).self_compose(rounds).get_epsilon_for_delta(delta))


@lru_cache(maxsize=256)
def noise_for(budget: float, rate: float, rounds: int, delta: float) -> float:
    """The smallest noise multiplier, in steps of 0.001, whose epsilon is within the budget."""
    high = 1.0
    while epsilon(high, rate, rounds, delta) > budget:
        high *= 2
        if high > 1e6:
            raise InputError(f"--privacy.epsilon {budget:g}: no noise keeps it for delta {delta:g}; take a larger one")
    low = 0.0 if high == 1.0 else high / 2
    steps = (round(low / STEP), round(high / STEP))  # too little, enough
    while steps[1] - steps[0] > 1:
        middle = sum(steps) // 2
        enough = epsilon(middle * STEP, rate, rounds, delta) <= budget
        steps = (steps[0], middle) if enough else (middle, steps[1])
    return steps[1] * STEP


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError(
            "--privacy.epsilon and --privacy.noise need the library dp-accounting: pip install 'fedproc[privacy]'"
        ) from error
    return dp_accounting


def _by_renyi(noise: float, rate: float, rounds: int, delta: float) -> float:
    library = _library()
    from dp_accounting import rdp

    one = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
    with _without_warnings():  # orders that do not converge are left out, which is on the safe side
        found = rdp.RdpAccountant().compose(library.SelfComposedDpEvent(one, rounds)).get_epsilon(delta)
    return float(found)


@lru_cache(maxsize=64)
def _one_round(noise: float, rate: float) -> Any:
    _library()
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=INTERVAL, sampling_prob=rate
    )


@contextmanager
def _without_warnings() -> Iterator[None]:
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
