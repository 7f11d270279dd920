from __future__ import annotations

import numpy as np
import pytest

from fedproc import InputError
from fedproc.data.partition import class_counts, dirichlet, heterogeneity, hold_out, iid

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
    training, validation = hold_out(share, labels, 0.25, 0, 3)
    assert sorted([*training, *validation]) == list(range(61))
    assert np.bincount(labels[validation], minlength=3).tolist() == [10, 5, 0]
    assert hold_out(share, labels, 0.25, 0, 3)[1].tolist() == validation.tolist()
    assert hold_out(share, labels, 0.25, 1, 3)[1].tolist() != validation.tolist()
    training, validation = hold_out(np.array([60]), labels, 0.9, 0, 0)
    assert training.tolist() == [60] and len(validation) == 0
