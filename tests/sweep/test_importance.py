"""The ranking and which option mattered, by numbers worked out by hand."""

from __future__ import annotations

import pytest

from fedproc.sweep.importance import grouped, importance
from fedproc.sweep.ranking import Trial, ranked, winner
from fedproc.sweep.space import Choices, Range

LR = Choices((0.01, 0.1))


def trial(number: int, lr: float, *scores: dict[int, float | None]) -> Trial:
    return Trial(number, {"lr": lr}, {"lr": lr}, scores)


def test_the_order_of_trials() -> None:
    low, high = trial(1, 0.01, {0: 0.5}), trial(2, 0.1, {0: 0.6})
    further = trial(3, 0.1, {0: 0.55}, {1: 0.4, 2: 0.6})
    best = trial(4, 0.1, {0: 0.52}, {1: 0.6, 2: 0.7})
    broken = trial(5, 0.1, {0: 0.9}, {1: None, 2: 0.9})
    same = trial(6, 0.01, {0: 0.5})
    order = [each.number for each in ranked([low, high, further, best, broken, same])]
    assert order == [4, 3, 2, 1, 6, 5]
    assert winner([broken]) is None and winner([low, broken]) is low and winner([]) is None


def test_an_option_that_explains_everything_and_one_that_explains_nothing() -> None:
    trials = [trial(n, 0.01 if n % 2 else 0.1, {0: 0.3 + 0.3 * (n % 2) + 0.001 * (n // 4)}) for n in range(8)]
    found = importance("lr", LR, trials)
    assert found is not None and found.share is not None
    assert found.gap == pytest.approx(0.3) and found.share > 0.99 and found.p < 0.05
    assert found.means == {"0.1": (4, pytest.approx(0.3005)), "0.01": (4, pytest.approx(0.6005))}
    # by hand: groups (1, 2) and (2, 1) of scores: no difference between means
    nothing = importance("lr", LR, [trial(n, lr, {0: s}) for n, lr, s in
                                    ((1, 0.01, 0.1), (2, 0.01, 0.2), (3, 0.1, 0.2), (4, 0.1, 0.1))])  # fmt: skip
    assert nothing is not None and (nothing.gap, nothing.share, nothing.p) == (0, 0, 1)


def test_epsilon_squared_by_hand() -> None:
    # groups 1, 2 and 4, 5: between 9, within 1 with 2 degrees of freedom: (9 - 0.5) / 10
    scores = ((0.01, 0.01), (0.01, 0.02), (0.1, 0.04), (0.1, 0.05))
    found = importance("lr", LR, [trial(n, lr, {0: s}) for n, (lr, s) in enumerate(scores)])
    assert found is not None and found.share == pytest.approx(0.85)
    assert 0.25 < found.p < 0.42  # 2 of the 6 ways to split four into pairs are as strong


def test_too_little_to_say_and_parts_of_a_range() -> None:
    assert importance("lr", LR, [trial(1, 0.01, {0: 0.1}), trial(2, 0.1, {0: 0.2})]) is None
    assert importance("lr", LR, [trial(n, 0.01, {0: 0.1 * n}) for n in range(5)]) is None
    names = grouped([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], Range(0, 1))
    assert names == ["0.1 to 0.2"] * 2 + ["0.3 to 0.4"] * 2 + ["0.5 to 0.6"] * 2
