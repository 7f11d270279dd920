"""Paired statistics against numbers worked out by hand and by scipy."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from fedproc.statistics import Paired, compare, family, holm, over_settings

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


def test_two_seeds_have_a_difference_and_no_interval() -> None:
    rows = {"base": BASE, "two": {0: 0.7, 2: 0.8}, "all": {s: v + 0.01 + 0.001 * s for s, v in BASE.items()}}
    found = compare(rows, "base")
    two = found["two"]
    assert two.difference == pytest.approx(0.13) and two.values == pytest.approx((0.1, 0.16))
    assert (two.low, two.high, two.detectable, two.verdict) == (None, None, None, "2 seeds, too few")
    assert found["all"].corrected == found["all"].p  # the other is no test, so there is one


def test_what_is_detectable_is_said_for_the_strictest_step_and_with_its_range() -> None:
    other = {0: 0.61, 1: 0.65, 2: 0.66, 3: 0.63}
    alone = compare({"base": BASE, "other": other}, "base")["other"]
    more = {f"row {k}": {s: v + 0.001 * ((s * k) % 3) for s, v in BASE.items()} for k in (1, 2, 4, 5)}
    one = compare({"base": BASE, "other": other, **more}, "base")["other"]
    error = math.sqrt(2 / 3) / 2 / 100
    assert one.detectable is not None and alone.detectable is not None and one.detectable > alone.detectable
    bound = float(stats.t.ppf(1 - 0.025 / 5, 3))  # of five tests
    assert stats.nct.sf(bound, 3, one.detectable / error) == pytest.approx(0.8, abs=1e-5)
    assert one.detectable_low == pytest.approx(one.detectable * math.sqrt(3 / stats.chi2.ppf(0.975, 3)))
    assert one.detectable_high == pytest.approx(one.detectable * math.sqrt(3 / stats.chi2.ppf(0.025, 3)))


def test_equal_within_half_a_point_takes_two_tests() -> None:
    close = {s: v + 0.001 * (-1) ** s for s, v in BASE.items()}
    one = compare({"base": BASE, "close": close}, "base")["close"]
    lower, upper = (stats.ttest_1samp(one.values, end, alternative=side).pvalue
                    for end, side in ((-0.005, "greater"), (0.005, "less")))  # fmt: skip
    assert one.equivalence == pytest.approx(max(lower, upper)) and one.equivalence < 0.05
    assert one.verdict == "equal within 0.5 points"
    wide = compare({"base": BASE, "wide": {s: v + 0.02 * (-1) ** s for s, v in BASE.items()}}, "base")["wide"]
    assert wide.equivalence > 0.3 and wide.verdict == "no difference seen"
    little = {s: v + 0.001 + 0.0001 * (-1) ** s for s, v in BASE.items()}
    assert compare({"base": BASE, "little": little}, "base")["little"].verdict == "better, by less than 0.5 points"


def test_a_family_over_several_comparisons() -> None:
    first = compare({"base": BASE, "a": {0: 0.61, 1: 0.65, 2: 0.66, 3: 0.63}}, "base")["a"]
    second = compare({"base": BASE, "b": {0: 0.60, 1: 0.63, 2: 0.66, 3: 0.61}}, "base")["b"]
    both = family({("one", "a"): first, ("two", "b"): second})
    assert both["one", "a"].corrected == pytest.approx(2 * first.p)
    assert both["two", "b"].corrected == max(2 * first.p, second.p)


def test_the_mean_over_settings_is_taken_seed_by_seed() -> None:
    one = compare({"base": BASE, "a": {s: v + 0.01 * s for s, v in BASE.items()}}, "base")["a"]  # 0, 1, 2, 3
    two = compare({"base": BASE, "a": {s: BASE[s] - 0.01 * s for s in (1, 2, 3)}}, "base")["a"]  # -1, -2, -3
    three = compare({"base": BASE, "a": {s: v + 0.03 for s, v in BASE.items()} | {1: 0.68}}, "base")["a"]  # 3, 6, 3, 3
    mean = over_settings([one, two, three])
    assert mean is not None and mean.seeds == (1, 2, 3)
    assert mean.values == pytest.approx((0.02, 0.01, 0.01)) and mean.difference == pytest.approx(0.04 / 3)
    assert over_settings([one, Paired((9, 8), 0.1, None, None, 1, 1, values=(0.1, 0.1))]) is None


def test_the_same_difference_every_time() -> None:
    exact = {seed: float(seed) for seed in range(3)}
    found = compare({"base": exact, "up": {s: v + 1 for s, v in exact.items()}, "same": dict(exact)}, "base")
    assert (found["up"].low, found["up"].high, found["up"].p, found["up"].verdict) == (
        1,
        1,
        1,
        "same for all seeds, no test",
    )
    assert (found["same"].p, found["same"].verdict, found["same"].detectable) == (1, "the same", None)


def test_what_has_no_spread_is_no_test_of_the_family() -> None:
    base = {seed: 0.1 * seed for seed in range(4)}
    other = {seed: value + 0.01 * (seed + 1) for seed, value in base.items()}
    alone = compare({"base": base, "other": other}, "base")["other"]
    beside = compare({"base": base, "other": other, "same": dict(base)}, "base")["other"]
    assert alone == beside and alone.corrected == alone.p < 1


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
