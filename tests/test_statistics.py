"""Paired statistics against numbers worked out by hand and by scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from fedproc.statistics import compare, holm

BASE = {0: 0.60, 1: 0.62, 2: 0.64, 3: 0.61}


def test_a_difference_by_hand() -> None:
    other = {0: 0.61, 1: 0.65, 2: 0.66, 3: 0.63}  # differences 1, 3, 2, 2 points
    one = compare({"base": BASE, "other": other}, "base")["other"]
    error = math.sqrt(2 / 3) / 2  # points: deviation sqrt(2/3) over sqrt(4)
    assert 100 * one.difference == pytest.approx(2.0)
    assert 100 * one.low == pytest.approx(2 - 3.182446 * error, abs=1e-5)
    assert 100 * one.high == pytest.approx(2 + 3.182446 * error, abs=1e-5)
    assert one.p == pytest.approx(float(stats.ttest_rel(list(other.values()), list(BASE.values())).pvalue))
    assert one.corrected == one.p and one.verdict == "better"
    assert one.detectable is not None  # by simulation-free power: a non-central t beyond the bound 8 times in 10
    assert stats.nct.sf(3.182446, 3, 100 * one.detectable / error) == pytest.approx(0.8, abs=1e-5)


def test_an_interval_that_holds_zero_is_no_difference_seen() -> None:
    other = {0: 0.61, 1: 0.60, 2: 0.65, 3: 0.61}
    one = compare({"base": BASE, "other": other}, "base")["other"]
    assert one.low < 0 < one.high and one.verdict == "no difference seen"
    worse = compare({"base": BASE, "other": {s: v - 0.05 - 0.001 * s for s, v in BASE.items()}}, "base")["other"]
    assert worse.verdict == "worse"


def test_only_common_seeds_count_and_one_is_too_few() -> None:
    found = compare({"base": BASE, "few": {3: 0.7, 9: 0.1}, "some": {0: 0.7, 2: 0.8, 9: 0.1}}, "base")
    assert "few" not in found and "base" not in found
    assert found["some"].seeds == (0, 2)


def test_the_same_difference_every_time() -> None:
    exact = {seed: float(seed) for seed in range(3)}
    found = compare({"base": exact, "up": {s: v + 1 for s, v in exact.items()}, "same": dict(exact)}, "base")
    assert (found["up"].low, found["up"].high, found["up"].p, found["up"].verdict) == (
        1,
        1,
        1,
        "same for all seeds, no test",
    )
    assert (found["same"].p, found["same"].verdict, found["same"].detectable) == (1, "no difference seen", None)


def test_rounding_is_no_spread() -> None:
    for k in range(200):
        base = {seed: (700 + 7 * k + 31 * seed) / 2000 for seed in range(3)}
        other = {seed: (720 + 7 * k + 31 * seed) / 2000 for seed in range(3)}
        one = compare({"base": base, "other": other}, "base")["other"]
        assert one.verdict == "same for all seeds, no test" and one.low == one.high


def test_holm_by_hand() -> None:
    # sorted 0.01, 0.03, 0.04: 3 * 0.01, then max(0.03, 2 * 0.03), then max(0.06, 0.04)
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
