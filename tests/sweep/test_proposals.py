"""Which points are tried: each value equally often, the same again from the seed, and none twice."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from fedproc.errors import InputError
from fedproc.methods import METHODS
from fedproc.sweep.plan import Plan, Rung, make_plan
from fedproc.sweep.proposals import Shared, candidates, grid_size
from fedproc.sweep.space import Choices, Range, Values, read_space

LR, GAMMA = Choices((0.01, 0.02, 0.05)), Choices((0.0, 1.0))
DECAY = Range(1e-6, 1e-2, log=True)
NOTHING = Shared({}, {})


def first(
    count: int, domains: dict[str, Choices | Range], seed: int = 0, shared: dict[str, Choices | Range] | None = None
) -> list[Values]:
    """Points of rows that share these options, all that are no method's; the first trial had none of their values."""
    common = {name: domain for name, domain in domains.items() if "." not in name} if shared is None else shared
    given = Shared(common, dict.fromkeys(common, -1.0))
    return list(itertools.islice(candidates("random", domains, given, seed, ()), count))


def test_random_draws_are_balanced_and_follow_the_seed() -> None:
    drawn = first(12, {"lr": LR, "calibrate": GAMMA, "weight_decay": DECAY})
    assert set(Counter(point["lr"] for point in drawn).values()) == {4}
    assert set(Counter(point["calibrate"] for point in drawn).values()) == {6}
    decays = sorted(float(point["weight_decay"]) for point in drawn[:8])
    bounds = [1e-6 * 10 ** (k / 2) for k in range(9)]  # eight strata of equal size in the logarithm
    assert all(low * 0.995 <= x <= high * 1.005 for x, low, high in zip(decays, bounds, bounds[1:], strict=False))
    assert drawn == first(12, {"lr": LR, "calibrate": GAMMA, "weight_decay": DECAY})
    assert drawn != first(12, {"lr": LR, "calibrate": GAMMA, "weight_decay": DECAY}, seed=1)


def test_rows_are_tried_at_the_same_points_of_what_they_share() -> None:
    plain = first(9, {"lr": LR, "calibrate": GAMMA})
    more = first(9, {"lr": LR, "calibrate": GAMMA, "fedproc.tau": Choices((0.2, 1.0))})
    assert [{k: v for k, v in point.items() if k != "fedproc.tau"} for point in more] == plain
    less = first(9, {"lr": LR}, shared={"lr": LR, "calibrate": GAMMA})  # its calibrate is fixed
    assert [point["lr"] for point in less] == [point["lr"] for point in plain]


@pytest.mark.parametrize("seed", range(5))
def test_no_shared_point_comes_again_before_all_were_there(seed: int) -> None:
    drawn = first(12, {"lr": LR, "calibrate": GAMMA, "fedproc.tau": Choices((0.2, 1.0))}, seed)
    common = [(point["lr"], point["calibrate"]) for point in drawn]
    assert len(set(common[:6])) == len(set(common[6:])) == 6


def test_rows_of_a_sweep_have_the_same_points_after_their_defaults(tmp_path: Path) -> None:
    """Also where a method has options of its own, so that a shared point drawn again would be new."""
    text = "lr = [0.01, 0.02, 0.05]\ncalibrate = [0.0, 1.0]\n[fedproc]\ntau = [0.2, 0.5, 1.0]\n"
    common = []
    for method in ("fedavg", "fedproc"):
        plan = planned(tmp_path, text, trials=6, method=method)
        points = [plan.resolved(plan.rows[0], trial) for trial in plan.proposed(plan.rows[0], [], [])]
        common.append([(point["lr"], point["calibrate"]) for point in points])
    assert common[0] == common[1] and common[0][0] == (0.01, 0.0) and len(set(common[0])) == 6


def test_a_grid_is_every_point_and_a_range_has_none() -> None:
    points = list(candidates("grid", {"lr": LR, "calibrate": GAMMA}, NOTHING, 0, ()))
    assert len(points) == grid_size({"lr": LR, "calibrate": GAMMA}) == 6
    assert len({tuple(point.items()) for point in points}) == 6
    with pytest.raises(InputError, match="search grid: weight_decay is a range"):
        grid_size({"weight_decay": DECAY})


def test_tpe_asks_the_same_again_and_learns() -> None:
    pytest.importorskip("optuna")
    domains = {"lr": Range(0.0, 1.0), "norm": Choices(("batch", "group"))}
    tried: list[tuple[Values, float]] = []
    for _ in range(6):
        batch = list(itertools.islice(candidates("tpe", domains, NOTHING, 3, tried), 4))
        assert batch == list(itertools.islice(candidates("tpe", domains, NOTHING, 3, tried), 4))
        tried += [(point, -abs(float(point["lr"]) - 0.7) - (point["norm"] == "batch")) for point in batch]
    late = [point for point, _ in tried[-8:]]
    assert sum(abs(float(point["lr"]) - 0.7) < 0.25 for point in late) >= 5
    assert sum(point["norm"] == "group" for point in late) >= 5


def planned(tmp_path: Path, text: str, search: str = "random", trials: int | None = 8, method: str = "fedavg") -> Plan:
    (tmp_path / "space.toml").write_text(text)
    space = read_space(tmp_path / "space.toml", METHODS)
    rows = {method: {"method": method}}
    return make_plan(space, rows, [Rung(2, (100,))], trials, search, 0, 4, "final", {"rounds": 2})


def test_the_first_trial_is_the_defaults_and_none_comes_twice(tmp_path: Path) -> None:
    plan = planned(tmp_path, "lr = [0.01, 0.02]\ncalibrate = [0.0, 1.0]\n")
    (row,) = plan.rows
    trials = plan.proposed(row, [], [])
    assert trials[0] == {} and plan.resolved(row, {}) == {"lr": 0.01, "calibrate": 0.0}
    points = [tuple(plan.resolved(row, trial).values()) for trial in trials]
    assert sorted(points) == [(0.01, 0.0), (0.01, 1.0), (0.02, 0.0), (0.02, 1.0)]  # eight wanted, four there
    assert plan.proposed(row, trials[:2], [0.1, 0.2]) == trials[2:]  # goes on as if it had not stopped


def test_combinations_that_exclude_each_other_are_left_out(tmp_path: Path) -> None:
    text = "[fedproc]\nalpha = [0.5]\nfloor = [0.0, 0.2]\n"
    plan = planned(tmp_path, text, search="grid", trials=None, method="fedproc")
    trials = plan.proposed(plan.rows[0], [], [])
    assert trials == [{}, {"fedproc.alpha": 0.5, "fedproc.floor": 0.0}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr = 0.1\n", r"lr = 0\.1: expected a list of values, or a range"),
        ("lr = [0.1, 0.1]\n", "expected each value once"),
        ("lr = [-0.1]\n", r"lr = -0\.1: lr -0\.1: expected a number above 0"),
        ("lr = { from = 0.1 }\n", "expected numbers from and to"),
        ("lr = { from = 0.0, to = 1.0, log = true }\n", "log = true needs from above 0"),
        ("lr = { from = 0.1, to = 1.0, step = 2 }\n", "step: expected from, to, log and whole alone"),
        ("rounds = [1, 2]\n", "rounds: is the same for all trials and cannot be searched"),
        ("val_fraction = [0.1]\n", "val_fraction: is the same for all trials"),
        ("learning_rate = [0.1]\n", "learning_rate: no such option or method"),
        ("fedproc = [1]\n", r"expected a table \[fedproc\]"),
        ("[fedproc]\ntua = [1]\n", r"fedproc\.tua: no such option; did you mean tau"),
        ("", "nothing to search in it"),
    ],
)
def test_a_space_that_is_not_one_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        planned(tmp_path, text)


def test_a_grid_that_is_larger_than_the_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trials 3: fedavg: its grid has 4 points; leave trials out"):
        planned(tmp_path, "lr = [0.01, 0.02]\ncalibrate = [0.0, 1.0]\n", "grid", 3)
