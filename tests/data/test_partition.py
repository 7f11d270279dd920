from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedproc import InputError
from fedproc.data.partition import (
    Deal,
    class_counts,
    deal_test,
    dirichlet,
    from_file,
    heterogeneity,
    hold_out,
    iid,
    natural,
    quantity,
    shards,
)

CIFAR10 = np.repeat(np.arange(10), 5000)  # sizes depend on how many samples a class has, not on their order
CIFAR100 = np.repeat(np.arange(100), 500)


@pytest.mark.parametrize(("seed", "smallest", "largest"), [(0, 3688, 8078), (1, 1980, 7495), (2, 2161, 6539)])
def test_draws_agree_with_the_public_reference(seed: int, smallest: int, largest: int) -> None:
    shares = dirichlet(CIFAR10, 10, 0.5, seed)
    sizes = [len(share) for share in shares]
    assert (min(sizes), max(sizes)) == (smallest, largest)
    assert sorted(np.concatenate(shares).tolist()) == list(range(50_000))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_empty_pairs_as_published(seed: int) -> None:
    def empty(labels: np.ndarray, clients: int, beta: float) -> float:
        shares = dirichlet(labels, clients, beta, seed)
        return float((class_counts(shares, labels, int(labels.max()) + 1) == 0).mean())

    assert 0.10 <= empty(CIFAR10, 10, 0.5) <= 0.15
    assert 0.40 <= empty(CIFAR10, 10, 0.1) <= 0.44


def test_empty_pairs_of_a_hundred_clients() -> None:
    shares = dirichlet(CIFAR100, 100, 0.5, 0)
    assert round(float((class_counts(shares, CIFAR100, 100) == 0).mean()), 2) == 0.27


def test_by_a_second_naive_implementation() -> None:
    labels = np.array([0, 1, 2] * 50)
    rng = np.random.RandomState(5)
    while True:
        held: list[list[int]] = [[], [], []]
        for k in range(3):
            members = np.where(labels == k)[0]
            rng.shuffle(members)
            share = rng.dirichlet([0.4] * 3)
            share = np.array([p if len(h) < 150 / 3 else 0 for p, h in zip(share, held, strict=True)])
            ends = [int(x) for x in np.cumsum(share / share.sum()) * len(members)]
            ends[-1] = len(members)
            for i in range(3):
                held[i] += members[ends[i - 1] if i else 0 : ends[i]].tolist()
        if min(map(len, held)) >= 10:
            break
    assert [share.tolist() for share in dirichlet(labels, 3, 0.4, 5)] == held


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(InputError, match=r"clients 20.*needs 200 samples, the data has 100"):
        dirichlet(np.zeros(100, int), 20, 0.5, 0)
    with pytest.raises(InputError, match=r"beta 0\.001 with clients 9.*1000 draws"):
        dirichlet(np.repeat([0, 1], 50), 9, 0.001, 0)
    with pytest.raises(InputError, match="beta -1"):
        dirichlet(np.zeros(100, int), 2, -1, 0)
    with pytest.raises(InputError, match="clients 0"):
        iid(np.zeros(100, int), 0, 0)


def test_iid_shares_are_equal_and_all() -> None:
    shares = iid(np.zeros(103), 10, 0)
    assert sorted(map(len, shares)) == [10] * 7 + [11] * 3
    assert sorted(np.concatenate(shares).tolist()) == list(range(103))


def test_heterogeneity_by_hand() -> None:
    assert heterogeneity(np.array([[5, 5], [10, 10]])) == 0
    # everyone holds one class of two: distance 1/2 from the whole
    assert heterogeneity(np.array([[10, 0], [0, 10]])) == pytest.approx(0.5)
    # whole is (1/2, 1/2); client 0 (3/4, 1/4) is 1/4 away with 4 samples, client 1 (1/4, 3/4) likewise
    assert heterogeneity(np.array([[3, 1], [1, 3]])) == pytest.approx(0.25)
    assert heterogeneity(class_counts(dirichlet(CIFAR10, 10, 0.1, 0), CIFAR10, 10)) > heterogeneity(
        class_counts(dirichlet(CIFAR10, 10, 5.0, 0), CIFAR10, 10)
    )


def test_validation_is_stratified_and_leaves_a_training_sample() -> None:
    labels = np.array([0] * 40 + [1] * 20 + [2])
    share = np.arange(61)
    (training, validation), (_, another) = hold_out([share, share], labels, 0.25, 0)
    assert sorted([*training, *validation]) == list(range(61))
    assert np.bincount(labels[validation], minlength=3).tolist() == [10, 5, 0]
    assert another.tolist() != validation.tolist()
    assert hold_out([share], labels, 0.25, 0)[0][1].tolist() == validation.tolist()
    assert hold_out([share], labels, 0.25, 1)[0][1].tolist() != validation.tolist()
    ((training, validation),) = hold_out([np.array([60])], labels, 0.9, 0)
    assert training.tolist() == [60] and len(validation) == 0


def test_without_the_cap_clients_may_grow() -> None:
    capped, plain = (dirichlet(CIFAR10, 10, 0.1, 0, capped=c) for c in (True, False))
    # the cap stops a client once it has N/m: it can pass that by at most the last class it is given
    assert max(map(len, capped)) < 5000 + 5000
    assert max(map(len, plain)) > max(map(len, capped))
    assert sorted(np.concatenate(plain).tolist()) == list(range(50_000))


def test_shards_give_each_client_so_many_classes() -> None:
    counts = class_counts(shards(CIFAR10, 20, 3, 0), CIFAR10, 10)
    assert ((counts > 0).sum(axis=1) == 3).all()
    assert counts.sum() == 50_000  # 20 clients hold every class, client i class i modulo 10
    assert all(counts[client, client % 10] > 0 for client in range(20))
    for k in range(10):
        held = counts[counts[:, k] > 0, k]
        assert held.max() - held.min() <= 1
    with pytest.raises(InputError, match="classes-per-client 11: expected 1 to 10"):
        shards(CIFAR10, 20, 11, 0)


def test_quantity_skews_sizes_alone() -> None:
    shares = quantity(CIFAR10, 10, 0.5, 0)
    sizes = sorted(map(len, shares))
    assert sizes[-1] > 5 * sizes[0] and sum(sizes) == 50_000
    assert heterogeneity(class_counts(shares, CIFAR10, 10)) < 0.05
    with pytest.raises(InputError, match="1000 draws"):
        quantity(np.zeros(100), 10, 0.001, 0)


def test_natural_and_file(tmp_path: Path) -> None:
    assert [s.tolist() for s in natural(np.array([1, 0, 1, 1]))] == [[1], [0, 2, 3]]
    with pytest.raises(InputError, match="names no sites"):
        natural(None)
    path = tmp_path / "p.json"
    for content in ([[0, 3], [1]], {"north": [0, 3], "south": [1]}, {"sites": {"site-1": [0, 3], "site-2": [1]}}):
        path.write_text(json.dumps(content))
        assert [s.tolist() for s in from_file(path, 4)] == [[0, 3], [1]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "expected a list of lists"),
        ("3", "expected a list of lists"),
        ("[[0], []]", "client 1 has no indices"),
        ("[[0, 4]]", "client 0 has 4, expected 0 to 3"),
        ("[[0, -1]]", "client 0 has -1"),
        ("[[0, 1.5]]", "client 0 has 1.5"),
        ("[[0, 1], [1]]", "1 is held by clients 0 and 1"),
    ],
)
def test_damaged_partition_files(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(InputError, match=r"p\.json") as caught:
        from_file(tmp_path / "p.json", 4)
    assert words in str(caught.value)


def test_the_test_set_is_dealt_out_by_the_same_class_shares() -> None:
    # client 0 holds 3 of 4 samples of class 0, client 1 all of class 1, nobody class 2
    counts = np.array([[3, 0, 0], [1, 5, 0]])
    labels = np.array([0] * 8 + [1] * 4 + [2] * 2)
    owner = deal_test(labels, counts, 0)
    assert np.bincount(owner[:8]).tolist() == [6, 2]
    assert owner[8:12].tolist() == [1] * 4 and owner[12:].tolist() == [-1, -1]
    assert deal_test(labels, counts, 0).tolist() == owner.tolist()


def test_every_kind_can_be_dealt() -> None:
    labels = np.repeat(np.arange(4), 50)
    for kind in ("dirichlet", "dirichlet-plain", "shards", "quantity", "iid"):
        assert len(Deal(kind, 5, 1.0, 0, 1).shares(labels)) == 5
