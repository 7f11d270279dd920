"""FedNTD and FedDecorr: terms on logits and on z."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import Train, toy_images
from torch import Tensor

from fedproc.experiment import Experiment
from fedproc.methods.feddecorr import decorrelation
from fedproc.methods.fedntd import not_true_divergence


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("method", ["fedntd", "feddecorr"])
def test_without_its_weight_it_is_fedavg(train: Train, method: str) -> None:
    images = toy_images(absent=3)
    average = train(images, method="fedavg", rounds=3)
    other = train(images, method=method, rounds=3, **{method: {"beta": 0.0}})
    assert torch.equal(average.state.weights.params, other.state.weights.params)
    assert not torch.equal(average.state.weights.params, train(images, method=method, rounds=3).state.weights.params)


# FedNTD


def test_not_true_distillation_by_hand() -> None:
    # the true class is 1; the others' softmaxes at temperature 2 are those of (0, 1) and of (1, 0)
    logits, teacher = torch.tensor([[2.0, 5.0, 0.0]]), torch.tensor([[0.0, -7.0, 2.0]])
    p = 1 / (1 + math.e)
    divergence = p * math.log(p / (1 - p)) + (1 - p) * math.log((1 - p) / p)
    found = not_true_divergence(logits, teacher, torch.tensor([1]), 2.0)
    assert found.tolist() == pytest.approx([4 * divergence], rel=1e-6)


def test_the_slope_of_the_distillation() -> None:
    logits, teacher, tau = drawn(3, 5).requires_grad_(), drawn(3, 5, seed=1), 0.7
    labels = torch.tensor([0, 4, 2])
    not_true_divergence(logits, teacher, labels, tau).sum().backward()
    true = torch.zeros(3, 5, dtype=torch.bool).scatter(-1, labels.unsqueeze(-1), True)

    def q(values: Tensor) -> Tensor:
        return (values.detach() / tau).masked_fill(true, -torch.inf).softmax(-1)

    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, tau * (q(logits) - q(teacher)), rtol=1e-12, atol=1e-14)
    assert not logits.grad[true].any()


def test_with_two_classes_there_is_nothing_to_distil() -> None:
    found = not_true_divergence(drawn(3, 2), drawn(3, 2, seed=1), torch.tensor([0, 1, 0]), 1.0)
    assert not found.any()


def test_the_divergence_of_all_classes_has_the_not_true_one_as_a_part() -> None:
    logits, teacher, labels = drawn(1, 6), drawn(1, 6, seed=1), torch.tensor([2])
    p, q = teacher.softmax(-1)[0], logits.softmax(-1)[0]
    whole = (p * (p / q).log()).sum()
    of_two = p[2] * (p[2] / q[2]).log() + (1 - p[2]) * ((1 - p[2]) / (1 - q[2])).log()
    part = (1 - p[2]) * not_true_divergence(logits, teacher, labels, 1.0)[0]
    assert whole.item() == pytest.approx((of_two + part).item(), rel=1e-12)


def test_a_round_begins_at_its_teacher(train: Train) -> None:
    # one step a round: the divergence is taken where the round starts
    record = train(method="fedntd", rounds=2, epochs=1, batch_size=200, dtype="float64").records[-1]
    assert abs(record["train_distillation_loss"]) < 1e-14
    assert train(method="fedntd", rounds=1, epochs=2, batch_size=200).records[-1]["train_distillation_loss"] > 0


# FedDecorr


def test_decorrelation_is_that_of_the_correlation_matrix() -> None:
    z = drawn(9, 6)
    squares = torch.corrcoef(z.T).square()
    expected = (8**2 / 9) * (squares.sum() - squares.diagonal().sum()) / 30
    assert decorrelation(z, None).item() == pytest.approx(expected.item(), rel=1e-6)


def test_scales_and_shifts_of_features_do_not_matter() -> None:
    z = drawn(9, 6)
    moved = z * torch.tensor([2.0, -3.0, 0.5, 1.0, 10.0, 4.0]) + torch.arange(6)
    assert decorrelation(moved, None).item() == pytest.approx(decorrelation(z, None).item(), rel=1e-6)


def test_two_equal_features_and_two_samples() -> None:
    column = drawn(7, 1)
    assert decorrelation(column.expand(7, 2), None).item() == pytest.approx(36 / 7, rel=1e-6)
    assert decorrelation(drawn(2, 8), None).item() == pytest.approx(1 / 2, rel=1e-5)
    assert decorrelation(drawn(1, 8), None).item() == 0


def test_masked_samples_enter_neither_the_count_nor_the_statistics() -> None:
    z, mask = drawn(2, 5, 4), torch.tensor([[True] * 5, [True, True, True, False, False]])
    padded = z.clone()
    padded[1, 3:] = torch.nan
    padded.requires_grad_()
    found = decorrelation(padded, mask)
    alone = [decorrelation(z[0], None).item(), decorrelation(z[1, :3], None).item()]
    assert found.tolist() == pytest.approx(alone, rel=1e-12)
    found.sum().backward()
    assert padded.grad is not None and torch.isfinite(padded.grad).all() and not padded.grad[1, 3:].any()


@pytest.mark.parametrize(("data", "beta"), [("cifar10", 0.1), ("cifar100", 0.05), ("tiny-imagenet", 0.05)])
def test_beta_follows_the_data_set(data: str, beta: float) -> None:
    assert Experiment(method="feddecorr", data=data).config()["feddecorr"] == {"beta": beta}
