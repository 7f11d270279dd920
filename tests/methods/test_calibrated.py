"""FedLC and FedRS: the cross-entropy of logits that are calibrated by what a client has."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Train, toy_images
from torch import Tensor

from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedlc import FedLC, printed_loss
from fedproc.methods.fedrs import FedRS
from fedproc.methods.method import Batch, ClientProblem, Local, Method
from fedproc.protocol.weights import Weights

NONE = Weights(torch.zeros(1), torch.zeros(0), torch.zeros(0))
LOGITS = torch.tensor([[0.3, -1.2, 0.8, 0.1], [2.0, 0.5, -0.5, 1.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1])


def minimised(kind: type[Method], counts: list[Any], logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
    held = torch.tensor(counts, dtype=torch.float64)
    local = Local(NONE, NONE, torch.zeros(1), {}, {}, {}, torch.tensor(1), held, held.clamp(min=0.5).log())
    z = torch.zeros(*labels.shape, 2, dtype=torch.float64)
    batch = Batch(z, logits, labels, None, lambda w: (z, logits))
    method = kind(kind.options_type(**options), ClientProblem(logits.shape[-1], 2, torch.float64))
    return CheckedClient(method).loss(batch, local)[0]


def slopes(kind: type[Method], counts: list[float], **options: Any) -> Tensor:
    """The gradient of the first sample's loss by its logits."""
    logits = LOGITS[:1].clone().requires_grad_()
    minimised(kind, counts, logits, LABELS[:1], **options).backward()
    assert logits.grad is not None
    return logits.grad[0]


@pytest.mark.parametrize(("method", "options"), [("fedlc", {"tau": 0.0, "absent": "floor"}), ("fedrs", {"alpha": 1.0})])
@pytest.mark.parametrize("calibrate", [0.0, 0.5])
def test_identities_bit_for_bit(train: Train, method: str, options: dict[str, Any], calibrate: float) -> None:
    images = toy_images(absent=3)
    average = train(images, method="fedavg", rounds=3, calibrate=calibrate)
    other = train(images, method=method, rounds=3, calibrate=calibrate, **{method: options})
    assert torch.equal(average.state.weights.params, other.state.weights.params)


# FedLC


def test_fedlc_by_hand() -> None:
    # tau 2, counts 16, 1, 81 and 0.5: margins 2 / 2, 2 / 1, 2 / 3 and 2 * 2^(1/4)
    margins = torch.tensor([1.0, 2.0, 2 / 3, 2 * 2**0.25], dtype=torch.float64)
    found = minimised(FedLC, [16, 1, 81, 0], LOGITS, LABELS, tau=2.0, absent="floor")
    assert found.item() == pytest.approx(F.cross_entropy(LOGITS - margins, LABELS).item(), rel=1e-12)


def test_absent_classes_are_out_of_the_softmax() -> None:
    found = minimised(FedLC, [16, 1, 81, 0], LOGITS, LABELS, tau=2.0)
    among = LOGITS[:, :3] - torch.tensor([1.0, 2.0, 2 / 3], dtype=torch.float64)
    assert found.item() == pytest.approx(F.cross_entropy(among, LABELS).item(), rel=1e-12)
    slope = slopes(FedLC, [16, 1, 81, 0])
    assert slope[3] == 0 and slope[:3].abs().min() > 0
    assert math.isfinite(minimised(FedLC, [16, 1, 81, 0], LOGITS, LABELS, tau=0.0).item())


@pytest.mark.parametrize("absent", ["out", "floor"])
def test_equal_counts_give_fedavg(absent: str) -> None:
    plain = minimised(FedAvg, [7] * 4, LOGITS, LABELS)
    found = minimised(FedLC, [7] * 4, LOGITS, LABELS, tau=3.0, absent=absent)
    assert found.item() == pytest.approx(plain.item(), rel=1e-12)


def test_the_printed_loss_is_another_function_of_cross_entropy() -> None:
    plain = F.cross_entropy(LOGITS, LABELS, reduction="none")
    torch.testing.assert_close(printed_loss(LOGITS, LABELS), plain.expm1().log(), rtol=1e-12, atol=0)
    # its slope is that of cross-entropy divided by 1 - p_y: a sample never counts as learned
    slope, usual = slopes(FedLC, [7] * 4, loss="printed"), slopes(FedLC, [7] * 4)
    torch.testing.assert_close(slope, usual / (1 - LOGITS[0].softmax(0)[0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", ["cross-entropy", "printed"])
def test_a_client_with_one_class_has_nothing_to_separate_it_from(loss: str) -> None:
    assert minimised(FedLC, [7, 0, 0, 0], LOGITS[:1], LABELS[:1], loss=loss).item() == 0
    assert not slopes(FedLC, [7, 0, 0, 0], loss=loss).any()


# FedRS


def test_fedrs_by_hand() -> None:
    found = minimised(FedRS, [5, 1, 0, 0], LOGITS, LABELS, alpha=0.3)
    scaled = LOGITS * torch.tensor([1.0, 1.0, 0.3, 0.3], dtype=torch.float64)
    assert found.item() == pytest.approx(F.cross_entropy(scaled, LABELS).item(), rel=1e-12)
    p = scaled[0].softmax(0)
    expected = [p[0].item() - 1, p[1].item(), 0.3 * p[2].item(), 0.3 * p[3].item()]
    assert slopes(FedRS, [5, 1, 0, 0], alpha=0.3).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_client_with_every_class_trains_as_in_fedavg() -> None:
    assert minimised(FedRS, [5, 1, 9, 2], LOGITS, LABELS) == minimised(FedAvg, [5, 1, 9, 2], LOGITS, LABELS)


def test_graded_scales_by_hand() -> None:
    scales = torch.tensor([1.0, 0.5 + 0.5 * 0.2, 0.5 + 0.5 * 0.6, 0.5], dtype=torch.float64)
    found = minimised(FedRS, [10, 2, 6, 0], LOGITS, LABELS, graded=True)
    assert found.item() == pytest.approx(F.cross_entropy(LOGITS * scales, LABELS).item(), rel=1e-12)


@pytest.mark.parametrize("kind", [FedLC, FedRS])
def test_lanes_with_other_counts_do_not_mix(kind: type[Method]) -> None:
    counts = [[5.0, 1.0, 9.0, 2.0], [3.0, 4.0, 0.0, 0.0]]
    both = minimised(kind, counts, torch.stack([LOGITS, LOGITS]), torch.stack([LABELS, LABELS]))
    alone = [minimised(kind, each, LOGITS, LABELS).item() for each in counts]
    assert both.tolist() == pytest.approx(alone, rel=1e-12) and alone[0] != alone[1]
