"""Class weights: torch's weighted cross-entropy, of all clients' counts or of the client's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import Train, toy_images, toy_session

from fedproc import InputError
from fedproc.experiment import Experiment
from fedproc.methods import METHODS
from fedproc.methods.class_weights import relative, with_class_weights
from fedproc.methods.method import Batch, ClientProblem, Local, Options, Term
from fedproc.protocol.task import Kind
from fedproc.protocol.weights import Weights

NONE = torch.zeros(0)


def local(counts: list[float], totals: list[float]) -> Local:
    weights = Weights(torch.zeros(3), NONE, NONE.long())
    held = torch.tensor(counts, dtype=torch.float64)
    sent = {"class_totals": torch.tensor(totals, dtype=torch.float64)}
    return Local(weights, weights, {}, sent, {}, {}, torch.tensor(1), held, held.log())


def batch(mask: torch.Tensor | None = None) -> Batch:
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 2, 1])
    return Batch(torch.zeros(6, 2), logits, labels, mask, lambda weights: (NONE, NONE))


def cross_entropy(how: str, given: Batch, at: Local) -> torch.Tensor:
    method = with_class_weights(METHODS["fedavg"], how)(Options(), ClientProblem(3, 2, torch.float64))  # type: ignore[arg-type]
    term = method.loss(given, at)["cross_entropy"]
    assert isinstance(term, Term) and callable(term.values)
    values = term.values()
    assert isinstance(values, torch.Tensor)
    return given.mean(values)


@pytest.mark.parametrize(("how", "counts"), [("own", [30.0, 6.0, 2.0]), ("balanced", [300.0, 6.0, 20.0])])
def test_it_is_torchs_weighted_cross_entropy(how: str, counts: list[float]) -> None:
    """Balanced: of class 1 the others told nothing, and the client counts its own."""
    given = batch()
    found = cross_entropy(how, given, local([30.0, 6.0, 2.0], [300.0, 0.0, 20.0]))
    weight = sum(counts) / (3 * torch.tensor(counts, dtype=torch.float64))  # as scikit-learn's "balanced" has it
    expected = F.cross_entropy(given.logits, given.labels, weight=weight)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    slopes = [torch.autograd.grad(loss, given.logits)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-15)


def test_padded_samples_count_nothing() -> None:
    mask = torch.tensor([True, True, False, True, True, False])
    given = batch(mask)
    weight = torch.tensor([1 / 30, 1 / 6, 1 / 2], dtype=torch.float64)
    expected = F.cross_entropy(given.logits[mask], given.labels[mask], weight=weight)
    found = cross_entropy("own", given, local([30.0, 6.0, 2.0], [0.0] * 3))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_one_class_alone_is_weighted_by_one_and_nobody_by_a_number() -> None:
    weights = torch.full((2, 3), 1 / 7)
    assert torch.allclose(relative(weights, None, None), torch.ones(2, 3))
    assert relative(weights, torch.zeros(2, 3, dtype=torch.bool), None).isfinite().all()


def test_the_server_learns_the_counts_and_no_means(train: Train) -> None:
    session = train(toy_images(absent=2), method="fedavg", class_weights="balanced", rounds=1)
    assert session.state.method["class_totals"].tolist() == [40, 40, 0, 40]
    classes = toy_session(toy_images(absent=2)).plan.method.classes
    without = train(toy_images(absent=2), method="fedavg", rounds=1)
    more = session.records[0]["bytes_up"] - without.records[0]["bytes_up"]
    assert more == 5 * (classes + 1) * 8  # five clients' counts and how many they are, nothing else


def test_small_classes_are_not_told(train: Train) -> None:
    given = {"method": "fedavg", "class_weights": "balanced", "rounds": 1}
    session = train(toy_images(absent=2), smallest_class=8, **given)
    told = session.state.method["class_totals"]
    counts = torch.stack([data.class_counts for data in session.clients])
    assert torch.equal(told, torch.where(counts >= 8, counts, 0).sum(dim=0).long())
    assert 0 < told.sum() < counts.sum()


def test_central_training_by_its_own_counts_is_training_by_all_counts(train: Train) -> None:
    images = toy_images()
    images.train.labels[:70] = 1  # classes of 0, 80, 40 and 40 images
    one, other = (train(images, method="central", dtype="float64", class_weights=how) for how in ("balanced", "own"))
    plain = train(images, method="central", dtype="float64")
    assert torch.equal(one.state.weights.params, other.state.weights.params)
    assert not torch.allclose(one.state.weights.params, plain.state.weights.params)
    assert "class_totals" not in one.state.method


PLUGIN = """
from fedproc.methods.method import Method
class Lengths(Method):
    name = "lengths"
    def term_names(self):
        return ("length",)
    def loss(self, batch, local):
        return {"length": batch.logits.square().sum(dim=-1)}
"""


def test_a_method_without_cross_entropy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.py"
    path.write_text(PLUGIN)
    with pytest.raises(InputError, match="class_weights balanced: lengths has no cross_entropy among its terms"):
        toy_session(method="lengths", plugin=path, class_weights="balanced")


def test_counts_are_asked_before_the_first_round() -> None:
    asks = Experiment(method="fedproc", class_weights="balanced").method_type
    made = asks(asks.options_type(), ClientProblem(3, 2))
    kinds = [which.counts_only for which in made.opening()]
    assert kinds == [False, True] and Kind.CLASS_COUNTS == "class counts"
