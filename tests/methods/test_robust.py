"""Robust merges against plain definitions, and what hostile clients can do to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedproc.errors import InputError
from fedproc.methods import robust
from fedproc.methods.robust import ROBUST, Robust

Rows = npt.NDArray[np.float64]
START = np.linspace(-1, 1, 7)


def made(name: str, **options: float) -> Robust:
    kind = ROBUST[name]
    return kind(kind.options_type(**options))


def merged(rule: Robust, rows: Rows, start: Rows | None = START, name: str = "params") -> Rows:
    tensors = [torch.from_numpy(row.copy()) for row in rows]
    found: Rows = rule.agreed(name, tensors, None if start is None else torch.from_numpy(start)).numpy()
    return found


def clients(count: int, seed: int = 0) -> Rows:
    return np.random.default_rng(seed).normal(size=(count, len(START)))


def by_krum(rows: Rows, f: int) -> list[int]:
    """Clients by their summed squared distances to the n - f - 2 nearest."""
    scores = []
    for i, row in enumerate(rows):
        others = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(rows) if j != i)
        scores.append(sum(others[: len(rows) - f - 2]))
    return sorted(range(len(rows)), key=lambda i: scores[i])


def clipped(rows: Rows, bound: float | None) -> Rows:
    moves = rows - START
    lengths = np.linalg.norm(moves, axis=1)
    longest = np.median(lengths) if bound is None else bound
    found: Rows = START + (moves * np.minimum(1, longest / lengths)[:, None]).mean(axis=0)
    return found


PLAIN: dict[str, tuple[Robust, Callable[[Rows], Rows]]] = {
    "median": (made("median"), lambda r: np.median(r, axis=0)),
    "trimmed-mean": (made("trimmed-mean", trim=0.25), lambda r: np.sort(r, axis=0)[3:-3].mean(axis=0)),
    "trim 0": (made("trimmed-mean", trim=0), lambda r: r.mean(axis=0)),
    "krum": (made("krum", hostile=2), lambda r: r[by_krum(r, 2)[0]]),
    "krum at most": (made("krum"), lambda r: r[by_krum(r, (len(r) - 3) // 2)[0]]),
    "multi-krum": (made("multi-krum", hostile=3), lambda r: r[by_krum(r, 3)[: len(r) - 3]].mean(axis=0)),
    "norm-clip": (made("norm-clip"), lambda r: clipped(r, None)),
    "norm-clip bound": (made("norm-clip", bound=0.5), lambda r: clipped(r, 0.5)),
}


@pytest.mark.parametrize("what", PLAIN)
@pytest.mark.parametrize("count", [9, 10])
def test_each_is_its_plain_definition(what: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "CHUNK", 3)  # so that seven coordinates are three chunks
    rule, plain = PLAIN[what]
    np.testing.assert_allclose(merged(rule, clients(count)), plain(clients(count)), rtol=1e-12, atol=1e-12)


def test_the_geometric_median_has_the_smallest_sum_of_distances() -> None:
    rows = clients(8)
    found = merged(made("geometric-median", iterations=300), rows)

    def total(point: Rows) -> float:
        return float(np.linalg.norm(rows - point, axis=1).sum())

    slope = ((found - rows) / np.linalg.norm(found - rows, axis=1)[:, None]).sum(axis=0)
    assert np.linalg.norm(slope) < 1e-4
    assert total(found) < min(total(rows.mean(axis=0)), total(np.median(rows, axis=0)), *map(total, rows))


@pytest.mark.parametrize(
    "rows", [[[0.0, 0.0], [10.0, -1.0], [-1.0, 10.0]], [[0.0, 0.0], [0.0, 0.0], [4.0, 1.0], [4.0, -1.0], [5.0, 0.0]]]
)
def test_the_geometric_median_leaves_a_client_that_it_begins_at(rows: list[list[float]]) -> None:
    """The median of each coordinate is a client's vector in the first case, where the sum is not smallest."""
    given = np.array(rows)
    found = merged(made("geometric-median", iterations=300), given, start=None)

    def total(points: Rows) -> Rows:
        every: Rows = np.linalg.norm(points[:, None] - given, axis=-1).sum(axis=1)
        return every

    sides = np.linspace(-1, 6, 281)
    grid = np.stack(np.meshgrid(sides, sides), axis=-1).reshape(-1, 2)
    assert total(found[None])[0] <= total(grid).min() + 1e-9


EVERY = [made(name) for name in ROBUST]


@pytest.mark.parametrize("rule", EVERY, ids=list(ROBUST))
@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 9), seed=st.integers(0, 1000))
def test_the_order_of_clients_does_not_matter_and_of_equal_ones_all_are_the_mean(
    rule: Robust, count: int, seed: int
) -> None:
    rows, order = clients(count, seed), np.random.default_rng(seed).permutation(count)
    if not isinstance(rule, robust.Krum) or count > 4:  # of few, two are each other's nearest
        np.testing.assert_allclose(merged(rule, rows[order]), merged(rule, rows), rtol=1e-9, atol=1e-12)
    same = np.tile(rows[0], (count, 1))
    np.testing.assert_allclose(merged(rule, same), rows[0], rtol=1e-12)
    single = [torch.from_numpy(row).float() for row in same]
    assert torch.equal(rule.agreed("params", single, torch.zeros(len(START))), single[0])  # to the bit


@settings(max_examples=60, deadline=None)
@given(
    honest=st.integers(5, 9),
    hostile=st.integers(1, 2),
    size=st.floats(-1e38, 1e38).filter(lambda x: abs(x) > 1e4),
    seed=st.integers(0, 99),
)
def test_hostile_clients_of_any_size_do_not_get_through(honest: int, hostile: int, size: float, seed: int) -> None:
    good = clients(honest, seed).astype(np.float32)
    bad = (size * np.random.default_rng(seed + 1).uniform(0.5, 1, (hostile, len(START)))).astype(np.float32)
    rows = [torch.from_numpy(row) for row in np.concatenate([good[:2], bad, good[2:]])]
    low, high = good.min(axis=0), good.max(axis=0)

    def of(name: str, **options: float) -> Rows:
        found: Rows = made(name, **options).agreed("class_means", rows, None).numpy()
        return found

    for found in (of("median"), of("trimmed-mean", trim=0.4)):
        assert (low <= found).all() and (found <= high).all()
    assert any(np.array_equal(of("krum", hostile=hostile), row) for row in good)
    kept = of("multi-krum", hostile=hostile)
    assert (low <= kept).all() and (kept <= high).all()
    spread = np.linalg.norm(good.astype(np.float64), axis=1).max()
    assert np.linalg.norm(of("geometric-median")) < 10 * spread  # bounded, whatever the size
    assert np.linalg.norm(of("norm-clip").astype(np.float64)) <= 1.001 * spread


def test_numbers_whose_squares_overflow_are_told_apart() -> None:
    rows = np.concatenate([clients(6), np.full((2, len(START)), 1e300), np.full((1, len(START)), -1e308)])
    for name in ROBUST:
        assert np.isfinite(merged(made(name), rows)).all(), name
    assert any(np.array_equal(merged(made("krum"), rows), row) for row in rows[:6])


def test_of_what_is_not_weights_norm_clip_takes_the_median_length() -> None:
    rows = np.concatenate([np.eye(7)[:4], 100 * np.eye(7)[4:5]])
    np.testing.assert_allclose(merged(made("norm-clip", bound=0.1), rows, None, "class_means"), [0.2] * 5 + [0, 0])


def test_tensors_keep_their_shape_and_kind_and_may_be_empty() -> None:
    rows = [torch.full((2, 3), float(i)) for i in range(5)]
    for rule in EVERY:
        found: Tensor = rule.agreed("control", rows, None)
        assert found.shape == (2, 3) and found.dtype == torch.float32
        assert rule.agreed("buffers", [torch.zeros(0)] * 5, torch.zeros(0)).shape == (0,)


def test_krum_says_how_many_clients_it_needs() -> None:
    made("krum", hostile=3).expect(9)
    made("multi-krum").expect(3)
    few = [torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([1e30])]
    assert float(made("multi-krum").agreed("params", few, None)) == 2.0  # of three, it would leave nobody out
    with pytest.raises(InputError, match=r"krum.hostile 3: needs 2f \+ 3 = 9 clients.* there are 8; of 8, 2 may"):
        made("krum", hostile=3).expect(8)
    with pytest.raises(InputError, match=r"merge multi-krum: needs 2f \+ 3 = 3 clients .* there are 2"):
        made("multi-krum").expect(2)
