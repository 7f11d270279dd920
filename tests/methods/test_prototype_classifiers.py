"""FedETF and FedNH: prototypes that are the classifier."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import Train, toy_images

from fedproc import prototypes
from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.fedetf import FedETF
from fedproc.methods.fednh import FedNH
from fedproc.methods.fedproc import FedProc
from fedproc.methods.method import Answer, Batch, ClientProblem, Local, Method, ServerProblem
from fedproc.methods.prototype_classifier import orthonormal
from fedproc.protocol.weights import Weights
from fedproc.simulation.session import Session

NONE = Weights(torch.zeros(1), torch.zeros(0), torch.zeros(0))


def made(kind: type[Method], classes: int, features: int = 16, **options: Any) -> Method:
    problem = ClientProblem(classes, features, torch.float64)
    return kind(kind.options_type(**options), problem, ServerProblem(3, model_seed=5))


def loss(method: Method, z: torch.Tensor, labels: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    sent = method.send(method.first_state(1))
    local = Local(NONE, NONE, torch.zeros(1), sent, {}, {}, torch.tensor(1), counts, counts.clamp(min=0.5).log())
    logits = torch.zeros(*labels.shape, method.client.classes, dtype=z.dtype)
    batch = Batch(z, logits, labels, None, lambda w: (z, logits))
    return CheckedClient(method).loss(batch, local)[0]


def classifier(session: Session) -> tuple[torch.Tensor, torch.Tensor]:
    named = session.setting.layout.named(session.state.weights)
    return named["classifier.weight"], named["classifier.bias"]


# FedETF


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_simplex(classes: int) -> None:
    v = made(FedETF, classes).first_state(1)["prototypes"]
    expected = torch.full((classes, classes), -1 / (classes - 1), dtype=torch.float64).fill_diagonal_(1)
    torch.testing.assert_close(v @ v.T, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(v.sum(dim=0), torch.zeros(16, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_the_loss_of_collapsed_features(scale: float) -> None:
    method = made(FedETF, 10, scale=scale, gamma=0.0)
    v = method.first_state(1)["prototypes"]
    found = loss(method, 3 * v, torch.arange(10), torch.zeros(10))
    assert found.item() == pytest.approx(math.log(1 + 9 * math.exp(-scale * 10 / 9)), rel=1e-9)


def test_without_balance_it_is_the_prototype_loss() -> None:
    method, z = made(FedETF, 4, gamma=0.0, scale=5.0), torch.randn(6, 16, dtype=torch.float64)
    labels, v = torch.tensor([0, 1, 2, 3, 0, 1]), method.first_state(1)["prototypes"]
    found = loss(method, z, labels, torch.tensor([9.0, 1.0, 0.0, 3.0], dtype=torch.float64))
    assert found.item() == pytest.approx(prototypes.prototype_loss(z, labels, v, 0.2).mean().item(), rel=1e-12)


def test_the_balance_adds_the_logs_of_counts_and_absent_classes_count_as_one() -> None:
    method, z = made(FedETF, 3, gamma=2.0, scale=4.0), torch.randn(1, 16, dtype=torch.float64)
    found = loss(method, z, torch.tensor([1]), torch.tensor([5.0, 2.0, 0.0], dtype=torch.float64))
    logits = 4 * (prototypes.unit(z) @ method.first_state(1)["prototypes"].T)[0]
    logits = logits + 2 * torch.tensor([5.0, 2.0, 1.0], dtype=torch.float64).log()
    assert found.item() == pytest.approx((logits.logsumexp(0) - logits[1]).item(), rel=1e-12)


def test_the_simplex_never_moves_and_is_the_classifier(train: Train) -> None:
    session = train(toy_images(absent=2), method="fedetf", rounds=3, dtype="float64")
    first = session.plan.method.first_state(1)["prototypes"]
    weight, bias = classifier(session)
    assert torch.equal(session.state.method["prototypes"], first)
    assert torch.equal(weight, 10 * first) and not bias.any()


def test_other_seeds_have_other_simplices() -> None:
    assert not torch.allclose(orthonormal(3, 8, 0), orthonormal(3, 8, 1))


def test_more_classes_than_features_are_refused() -> None:
    with pytest.raises(ValueError, match="17 classes: expected at most 16"):
        made(FedETF, 17).first_state(1)


# FedNH


@pytest.mark.parametrize("method", ["fedetf", "fednh"])
def test_accuracy_is_that_of_the_nearest_prototype(train: Train, method: str) -> None:
    for record in train(toy_images(absent=2), method=method, rounds=3, dtype="float64").records:
        assert record["test_accuracy"] == record["prototype_accuracy"]


def test_a_round_of_prototypes_by_hand() -> None:
    # c = (1, 0), (0, 1); client A has three of class 0 at (0.6, 0.8) times 0.5, client B one at (0, 1)
    method = made(FedNH, 2, 2, smoothing=0.5)
    state = {"prototypes": torch.eye(2, dtype=torch.float64)}
    means = [[[0.3, 0.4], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]]
    sums: dict[str, torch.Tensor] = {}
    for client, (mean, count) in enumerate(zip(means, (3, 1), strict=True)):
        tensors = {"class_means": torch.tensor(mean, dtype=torch.float64), "class_counts": torch.tensor([count, 0])}
        sums = dict(method.collect(state, sums, Answer(client, count, 1, 0.5, tensors)))
    found = method.receive(state, sums)["prototypes"]
    x, y = (3 * 0.6 + 0) / 4, (3 * 0.8 + 1) / 4  # the mean of unit vectors by counts
    length = math.hypot(x, y)
    x, y = 0.5 + 0.5 * x / length, 0.5 * y / length
    assert found[0].tolist() == pytest.approx([x / math.hypot(x, y), y / math.hypot(x, y)])
    assert found[1].tolist() == [0.0, 1.0]  # nobody has class 1


def test_prototypes_keep_their_length_and_are_the_classifier(train: Train) -> None:
    session = train(toy_images(absent=2), method="fednh", rounds=3, dtype="float64", fednh={"scale": 4.0})
    c = session.state.method["prototypes"]
    first = session.plan.method.first_state(1)["prototypes"]
    torch.testing.assert_close(c.norm(dim=-1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)
    weight, bias = classifier(session)
    assert torch.equal(weight, 4 * c) and not bias.any()
    assert torch.equal(c[2], first[2]) and not torch.allclose(c[0], first[0])


def test_full_smoothing_is_a_fixed_orthonormal_head(train: Train) -> None:
    session = train(method="fednh", rounds=2, dtype="float64", fednh={"smoothing": 1.0})
    c, first = session.state.method["prototypes"], session.plan.method.first_state(1)["prototypes"]
    torch.testing.assert_close(c, first, rtol=0, atol=1e-14)
    torch.testing.assert_close(c @ c.T, torch.eye(4, dtype=torch.float64), rtol=0, atol=1e-12)


def test_without_smoothing_it_is_fedproc_with_unit_means(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedProc at alpha 1 and tau 1/s, each client's mean of z of length 1 scaled to length 1, weighted by counts."""
    given = {"rounds": 3, "dtype": "float64", "momentum": 0.0, "weight_decay": 0.0}
    other = train(method="fednh", **given, fednh={"smoothing": 0.0, "scale": 5.0})
    add = prototypes.add_means

    def of_units(before: Any, means: torch.Tensor, *more: Any) -> Any:
        return add(before, prototypes.unit(means), *more)

    def first(self: FedProc, params: int) -> dict[str, torch.Tensor]:
        everyone = torch.ones(4, dtype=torch.bool)
        return {"prototypes": orthonormal(4, 256, 0), "known": everyone}

    monkeypatch.setattr("fedproc.methods.fedproc.prototypes.add_means", of_units)
    monkeypatch.setattr(FedProc, "first_state", first)
    options = {"alpha": 1.0, "tau": 0.2, "weighting": "count", "start": "random"}
    proc = train(method="fedproc", normalize_z=True, fedproc=options, **given)
    span = proc.setting.layout.span("classifier.")
    torch.testing.assert_close(
        proc.state.weights.params[: span.start], other.state.weights.params[: span.start], rtol=0, atol=1e-10
    )
    torch.testing.assert_close(
        prototypes.unit(proc.state.method["prototypes"]), other.state.method["prototypes"], rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [("fedetf", {"gamma": 0.0}), ("fedetf", {"scale": 1.0}), ("fednh", {"uniform": True}), ("fednh", {"smoothing": 0})],
)
def test_every_option_changes_the_result(train: Train, method: str, options: dict[str, Any]) -> None:
    plain, other = (train(method=method, **{method: o}).state.weights.params for o in ({}, options))
    assert torch.isfinite(other).all() and not torch.equal(plain, other)


@pytest.mark.parametrize(("method", "unit"), [("fednh", True), ("fedetf", True), ("fedavg", False)])
def test_z_has_length_one_where_the_method_says_so(train: Train, method: str, unit: bool) -> None:
    session = train(method=method, rounds=1)
    assert not session.experiment.normalize_z and session.setting.spec.normalize_z is unit
