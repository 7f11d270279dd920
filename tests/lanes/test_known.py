"""Losses whose slopes are known train as autograd would, and everything else is left to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from conftest import Train, toy_images
from torch import Tensor

from fedproc.kernels import cpu
from fedproc.lanes.serial import SerialNet
from fedproc.methods.fedavg import CrossEntropy, FedAvg
from fedproc.methods.fedproc import FedProc
from fedproc.methods.known import slopes
from fedproc.methods.method import Batch, Local, Method, Term, Terms
from fedproc.prototypes import Contrast

pytestmark = pytest.mark.skipif(cpu.missing() is not None, reason=f"no C kernels here: {cpu.missing()}")


@pytest.mark.parametrize("calibrate", [0.0, 1.0])
@pytest.mark.parametrize("method", ["fedavg", "fedproc", "fedprox", "scaffold", "fedsam"])
def test_the_same_bits_as_autograd(
    train: Train, monkeypatch: pytest.MonkeyPatch, method: str, calibrate: float
) -> None:
    given = {"network": "simple-cnn", "method": method, "calibrate": calibrate}
    found = train(toy_images(absent=2), "serial", 1, **given)
    monkeypatch.setattr(SerialNet, "descend", None)
    expected = train(toy_images(absent=2), "serial", 1, **given)
    assert torch.equal(found.state.weights.params, expected.state.weights.params)
    for one, other in zip(found.records, expected.records, strict=True):
        for name in ("train_loss", *(name for name in one if name.startswith("train_"))):
            assert one[name] == pytest.approx(other[name], rel=1e-6)


@pytest.mark.parametrize(("method", "known"), [("fedavg", True), ("fedproc", True), ("fedlc", False), ("moon", False)])
def test_autograd_is_asked_where_it_must_be(
    train: Train, monkeypatch: pytest.MonkeyPatch, method: str, known: bool
) -> None:
    asked: list[Tensor] = []
    gradient = SerialNet.gradient

    def watched(net: SerialNet, total: Tensor) -> Tensor:
        asked.append(total)
        return gradient(net, total)

    monkeypatch.setattr(SerialNet, "gradient", watched)
    train(toy_images(), "serial", 1, network="simple-cnn", method=method)
    assert bool(asked) != known


def batch(labels: Tensor) -> Batch:
    made = torch.Generator().manual_seed(0)
    z, logits = (torch.randn(len(labels), wide, generator=made) for wide in (19, 3))
    return Batch(z, logits, labels, None, lambda weights: (z, logits))


def test_more_than_is_known_is_left_alone() -> None:
    b, sums = batch(torch.tensor([0, 2, 1])), torch.zeros(3, dtype=torch.float64)
    known = CrossEntropy(lambda: b.logits, b.labels, b.logits)
    contrast = Contrast(b.z, b.labels, torch.ones(3, 19), 1.0, torch.ones(3, dtype=torch.bool))
    unknown: list[list[Term]] = [
        [Term(CrossEntropy(lambda: b.logits + 1, b.labels))],
        [Term(CrossEntropy(lambda: b.logits, b.labels.flip(0), b.logits))],
        [Term(CrossEntropy(lambda: 3 * b.logits, b.labels, 3 * b.logits))],
        [Term(known, torch.tensor(0.25, requires_grad=True))],
        [Term(CrossEntropy(lambda: b.logits, b.labels, b.logits, torch.zeros(3, dtype=torch.float64)))],
        [Term(CrossEntropy(lambda: b.logits, b.labels, b.logits, torch.zeros(())))],
        [Term(Contrast(b.z, b.labels, torch.ones(3, 20), 1.0, torch.ones(3, dtype=torch.bool)))],
        [Term(Contrast(b.z, b.labels, torch.ones(3, 19), 1.0, torch.ones(3)))],
        [Term(known, counted=torch.tensor([True, False, True]))],
        [Term(known, torch.ones(2))],
        [Term(known, torch.ones((), dtype=torch.float64))],
        [Term(known), Term(known)],
        [Term(lambda: b.logits.sum(dim=-1))],
        [Term(known), Term(b.z.sum(dim=-1))],
        [Term(Contrast(2 * b.z, b.labels, contrast.prototypes, 1.0, contrast.known))],
        [Term(Contrast(b.z, b.labels, contrast.prototypes.double(), 1.0, contrast.known))],
        [Term(Contrast(b.z, b.labels, contrast.prototypes, torch.tensor(0.5), contrast.known))],
        [Term(Contrast(b.z, b.labels, contrast.prototypes, 1.0, contrast.known, torch.ones(3, requires_grad=True)))],
        [Term(CrossEntropy(lambda: b.logits, b.labels, b.logits, torch.ones(3, requires_grad=True)))],
    ]
    for terms in unknown:
        assert slopes(terms, b, sums) is None and not bool(sums.any())
    by_z, by_logits = slopes([Term(known, torch.tensor(0.25)), Term(contrast, 2)], b, sums) or (None, None)
    assert by_z is not None and by_logits is not None
    assert float(sums[0]) == pytest.approx(0.25 * float(sums[1]) + 2 * float(sums[2]))
    assert slopes([Term(known)], b, torch.zeros(2, dtype=torch.float64)) is not None


class Changed(FedAvg):
    """A batch with other logits."""

    name, summary = "changed", "cross-entropy of three times the logits"

    def loss(self, batch: Batch, local: Local) -> Terms:
        return super().loss(replace(batch, logits=3 * batch.logits), local)


class Threefold(Method):
    """Three times the logits, for whoever comes before it."""

    def logits(self, batch: Batch, local: Local) -> Tensor:
        return 3 * super().logits(batch, local)


class Before(FedAvg, Threefold):
    name, summary = "before", "FedAvg before another one's logits"


class Weighted(FedAvg):
    """A weight through which a gradient flows."""

    name, summary = "weighted", "cross-entropy times what depends on the logits"

    def loss(self, batch: Batch, local: Local) -> Terms:
        above = super().loss(batch, local)["cross_entropy"]
        assert isinstance(above, Term)
        return {"cross_entropy": Term(above.values, 1 + batch.mean(batch.logits.square().mean(dim=-1)))}


class Hooked(FedAvg):
    """A hook on the logits."""

    name, summary = "hooked", "half the gradient"

    def loss(self, batch: Batch, local: Local) -> Terms:
        if batch.logits.requires_grad:
            batch.logits.register_hook(lambda g: 0.5 * g)
        return super().loss(batch, local)


class Learnt(FedProc):
    """A temperature through which a gradient flows."""

    name, summary = "learnt", "prototypes at a temperature that depends on the batch"

    def loss(self, batch: Batch, local: Local) -> Terms:
        terms = super().loss(batch, local)
        pull = terms["contrast"]
        assert isinstance(pull, Term) and isinstance(pull.values, Contrast)
        tau = 0.5 + batch.z.square().mean()
        return {**terms, "contrast": replace(pull, values=replace(pull.values, tau=tau))}


@pytest.mark.parametrize("method", [Changed, Before, Weighted, Hooked, Learnt])
def test_what_a_method_changes_goes_through_autograd(
    train: Train, monkeypatch: pytest.MonkeyPatch, method: type[Method]
) -> None:
    def weights() -> Tensor:
        return train(toy_images(), "serial", 1, network="simple-cnn", method=method).state.weights.params

    found = weights()
    monkeypatch.setattr(SerialNet, "descend", None)
    assert torch.equal(found, weights())
