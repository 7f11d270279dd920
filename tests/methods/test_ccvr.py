"""CCVR: moments pooled over clients, and the classifiers made of them after the last round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Train, toy_images
from torch import Tensor

from fedproc import InputError
from fedproc.experiment import Experiment
from fedproc.methods import METHODS, ccvr
from fedproc.methods.ccvr import add_moments, discriminant, draw, pooled, retrained, with_ccvr
from fedproc.methods.fedavg import FedAvg

K, Q = 3, 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def moments(z: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A client's counts, means and unbiased covariances, straight from their definition."""
    counts = torch.bincount(labels, minlength=K).double()
    means, covariances = torch.zeros(K, Q).double(), torch.zeros(K, Q, Q).double()
    for k in range(K):
        own = z[labels == k]
        if len(own):
            means[k] = own.mean(dim=0)
        if len(own) > 1:
            covariances[k] = torch.cov(own.T)
    return counts, means, covariances


@pytest.mark.parametrize("cuts", [[40], [1, 1, 38], [13, 13, 14], [1] * 40])
def test_pooled_moments_are_those_of_all_samples(cuts: list[int]) -> None:
    z, labels = 3 + 2 * drawn(40, Q), torch.arange(40) % K
    labels[labels == 2] = 0
    labels[7] = 2  # of class 2 there is one sample
    sums: dict[str, Tensor] = {}
    for own, of in zip(z.split(cuts), labels.split(cuts), strict=True):
        sums = dict(add_moments(sums, *moments(own, of)))
    for found, expected in zip(pooled(sums), moments(z, labels), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_drawn_vectors_have_the_moments() -> None:
    z, labels = drawn(200, Q) @ drawn(Q, Q, seed=1), torch.arange(200) % 2
    counts, means, covariances = moments(z, labels)
    vectors, of = draw(counts, means, covariances, 20_000, 0)
    assert torch.bincount(of, minlength=K).tolist() == [20_000, 20_000, 0]  # nobody has class 2
    _, again, spread = moments(vectors.double(), of)
    torch.testing.assert_close(again[:2], means[:2], rtol=0, atol=0.1)
    torch.testing.assert_close(spread[:2], covariances[:2], rtol=0.05, atol=0.1)
    assert not torch.equal(draw(counts, means, covariances, 10, 1)[0], draw(counts, means, covariances, 10, 0)[0])


def test_what_cannot_be_drawn_from_is_widened_a_little_and_one_sample_stays_where_it_is() -> None:
    counts = torch.tensor([2.0, 1.0, 0.0])
    z = drawn(3, Q)
    _, means, covariances = moments(z, torch.tensor([0, 0, 1]))
    vectors, of = draw(counts, means, covariances, 50, 0)
    assert torch.isfinite(vectors).all() and vectors[of == 0].std(dim=0).min() > 0
    torch.testing.assert_close(vectors[of == 1], means[1].float().expand(50, Q))


def test_one_step_of_retraining_is_that_of_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ccvr, "EPOCHS", 2)
    z, labels, start = drawn(10, Q).float(), torch.arange(10) % K, drawn(K * Q + K, seed=3)
    layer = torch.nn.Linear(Q, K, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(start[:-K].view(K, Q))
        layer.bias.copy_(start[-K:])
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3, momentum=0.9)
    for _ in range(2):  # fewer vectors than a batch: their order does not matter
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(z.double()), labels).backward()
        optimizer.step()
    expected = torch.cat([layer.weight.flatten(), layer.bias]).detach()
    torch.testing.assert_close(retrained(start, z, labels, K, 0), expected, rtol=0, atol=1e-12)


def test_the_discriminant_with_the_identity_is_the_nearest_mean() -> None:
    means, z = drawn(K, Q), drawn(50, Q, seed=1)
    found = discriminant(torch.ones(K), means, torch.eye(Q).double().expand(K, Q, Q))
    logits = z @ found[:-K].view(K, Q).T + found[-K:]
    assert torch.equal(logits.argmax(dim=-1), torch.cdist(z, means).argmin(dim=-1))


def test_the_discriminant_separates_by_the_common_covariance() -> None:
    # of two Gaussians with one covariance C the best direction is C^-1 (m_0 - m_1)
    root = drawn(Q, Q, seed=2)
    common, means = root @ root.T + torch.eye(Q), drawn(K, Q)
    found = discriminant(torch.tensor([5.0, 5.0, 0.0]), means, common.expand(K, Q, Q))
    weight, bias = found[:-K].view(K, Q), found[-K:]
    shrunk = 0.99 * common + 0.01 * common.diagonal().mean() * torch.eye(Q)
    torch.testing.assert_close(weight[0] - weight[1], shrunk.inverse() @ (means[0] - means[1]))
    assert not weight[2].any() and bias[2] == -1e4  # nobody has class 2, which is never said


@pytest.mark.parametrize("method", ["fedavg", "fedproc", "fedetf"])
def test_encoder_and_head_stay_and_the_run_is_what_it_was(train: Train, method: str) -> None:
    images, given = toy_images(absent=2), {"method": method, "rounds": 2, "dtype": "float64"}
    plain = train(images, **given)
    other = train(images, **given, ccvr="both", ccvr_samples=50)
    assert torch.equal(plain.state.weights.params, other.state.weights.params)
    record, result = other.records[-1], other.result
    assert record["test_accuracy"] == plain.records[-1]["test_accuracy"]
    assert set(record["final_models"]) == {"ccvr", "lda"} and result is not None
    # of five clients K means of 256 numbers, K covariances of 256 by 256, K counts and the number of samples
    assert record["closing"]["bytes_up"] == 5 * (4 * 256 + 4 * 256 * 256 + 4 + 1) * 8
    assert record["final_models"]["lda"]["accuracy"] > 0.5
    assert result["final_lda_accuracy"] == record["final_models"]["lda"]["accuracy"]


def test_new_classifiers_leave_the_features_alone(train: Train) -> None:
    session = train(rounds=2, dtype="float64", ccvr="both", ccvr_samples=20)
    weights = session.state.weights
    sums = add_moments({}, *moments_of_four())
    models = session.plan.method.knowing(session.client_sizes).final_models(weights, sums)
    span = session.setting.layout.span("classifier.")
    for model in models.values():
        assert torch.equal(model.params[: span.start], weights.params[: span.start])
        assert not torch.equal(model.params[span], weights.params[span])


def moments_of_four() -> tuple[Tensor, Tensor, Tensor]:
    root = drawn(4, 256, 256, seed=4) / 16
    return torch.full((4,), 300.0).double(), drawn(4, 256), root @ root.transpose(-1, -2)


def test_the_same_lanes_train_methods_with_and_without_it() -> None:
    kind = with_ccvr(FedAvg, "lda", 10)
    assert kind is with_ccvr(FedAvg, "lda", 10) and kind.name == "fedavg" and with_ccvr(FedAvg, "none", 10) is FedAvg
    assert kind.options_type is FedAvg.options_type


@pytest.mark.parametrize("executor", ["stacked", "streamed"])
def test_executors_agree(train: Train, executor: str) -> None:
    images = toy_images(absent=2)
    given: dict[str, Any] = {"dtype": "float64", "rounds": 1, "lr": 0.01, "ccvr": "lda", "method": "fedavg"}
    one = train(images, "serial", 1, **given).records[-1]["final_models"]
    other = train(images, executor, 3, **given).records[-1]["final_models"]
    assert one["lda"]["loss"] == pytest.approx(other["lda"]["loss"], rel=1e-6)
    assert one["lda"]["accuracy"] == other["lda"]["accuracy"]


def test_models_of_ones_own_are_refused_before_training(train: Train) -> None:
    with pytest.raises(InputError, match="ccvr lda: fedper has models of each client's own"):
        train(method="fedper", ccvr="lda")


def test_it_is_an_option_of_every_run() -> None:
    for name in METHODS:
        kind = Experiment(method=name, ccvr="sampled").method_type
        assert issubclass(kind, METHODS[name]) and kind.name == name
