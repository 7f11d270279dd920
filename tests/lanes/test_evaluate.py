from __future__ import annotations

import pytest
import torch
from conftest import Train, toy_images

from fedproc.data.augment import Normalisation
from fedproc.lanes.evaluate import HeldOut, areas, evaluate
from fedproc.protocol.evaluation import expected, mean_measures, measures
from fedproc.protocol.guard import admit


def test_measures_by_hand() -> None:
    # Six samples; pixels 0 to 5 choose the logits below. True classes 0 0 0 1 1 2, predicted 0 0 1 1 0 0.
    logits = torch.tensor([[3, 1, 0], [2, 1, 0], [1, 2, 0], [0, 3, 1], [2, 1, 0], [2, 0, 1]], dtype=torch.float32)
    z = torch.eye(3)[torch.tensor([0, 0, 1, 1, 1, 0])]
    held_out = HeldOut(
        images=torch.arange(6, dtype=torch.uint8).view(6, 1, 1, 1),
        labels=torch.tensor([0, 0, 0, 1, 1, 2]),
        index=torch.arange(6),
        owner=torch.tensor([0, 0, 1, 1, 1, -1]),
        clients=3,
    )

    def forward(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        place = (images.flatten() * 255).round().long()
        return z[place], logits[place]

    payload = evaluate(
        forward,
        held_out,
        Normalisation((0.0,), (1.0,)),
        torch.float32,
        3,
        torch.eye(3),
        torch.tensor([True, True, False]),
    )
    admit(payload, expected(3, 3))
    assert payload.tensors["confusion"].tolist() == [[2, 1, 0], [1, 1, 0], [1, 0, 0]]
    found = measures(payload)
    assert found["accuracy"] == 3 / 6
    # recalls 2/3, 1/2, 0; F1: 2*2/(3+4), 2*1/(2+2), 0/(1+0)
    assert found["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2) / 3)
    assert found["macro_f1"] == pytest.approx((4 / 7 + 1 / 2) / 3)
    assert found["class_accuracy"] == pytest.approx([2 / 3, 1 / 2, 0])
    # nearest prototype says 0 0 1 1 1 0: right for the first two and for both of class 1
    assert found["prototype_accuracy"] == 4 / 6
    # client 0 has the first two, both right; client 1 the next three, one right; client 2 none
    assert found["client_accuracy_mean"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["client_accuracy_worst"] == pytest.approx(1 / 3)
    entropy = torch.nn.functional.cross_entropy(logits.double(), held_out.labels)
    assert found["loss"] == pytest.approx(float(entropy))


def test_areas_by_hand() -> None:
    # class 0: scores of members 0.9, 0.4; of others 0.4, 0.1: pairs 1 + 1 + 0.5 + 1 of 4
    scores = torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.4, 0.6], [0.1, 0.9]], dtype=torch.float64)
    auc, defined = areas(scores, torch.tensor([0, 0, 1, 1]))
    assert auc.tolist() == [3.5 / 4, 3.5 / 4] and defined.tolist() == [True, True]
    _, defined = areas(scores, torch.tensor([0, 0, 0, 0]))
    assert not defined.any()


def test_areas_agree_with_counting_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (60, 3), generator=generator).double()
    labels = torch.randint(0, 3, (60,), generator=generator)
    auc, _ = areas(scores, labels)
    for k in range(3):
        inside, outside = scores[labels == k, k], scores[labels != k, k]
        wins = (inside[:, None] > outside).double() + 0.5 * (inside[:, None] == outside)
        assert auc[k].item() == pytest.approx(wins.mean().item())


def test_the_mean_over_models() -> None:
    one = {"accuracy": 0.5, "class_accuracy": [1.0, None], "confusion": [[1, 0], [0, 1]]}
    two = {"accuracy": 0.7, "class_accuracy": [0.0, None], "confusion": [[1, 2], [3, 4]]}
    found = mean_measures([one, two])
    assert found == {"accuracy": pytest.approx(0.6), "class_accuracy": [0.5, None], "confusion": [[2, 2], [3, 5]]}


def test_solo_reports_mean_and_spread_over_clients(train: Train) -> None:
    session = train(method="solo", solo={"epochs": 4}, network="toy_networks:BatchNormNet")
    assert session.result is not None
    assert "final_accuracy_deviation" in session.result
    assert session.records[-1]["test_accuracy_deviation"] > 0
    # each client's own model on its own share is better than everyone's models on everyone's shares
    assert session.records[-1]["client_accuracy_mean"] > session.records[-1]["test_accuracy"]


def test_target_accuracy(train: Train) -> None:
    given = {"network": "toy_networks:BatchNormNet", "partition": "iid", "rounds": 6, "epochs": 3}
    session = train(method="fedavg", target_accuracy=0.9, **given)
    assert session.result is not None
    reached = next(r["round"] for r in session.records if r["test_accuracy"] >= 0.9)
    assert session.result["rounds_to_target"] == reached
    spent = sum(r["bytes_up"] + r["bytes_down"] for r in session.records[:reached])
    assert session.result["bytes_to_target"] == spent
    never = train(method="fedavg", target_accuracy=1.0, rounds=1)
    assert never.result is not None and never.result["rounds_to_target"] is None


def test_a_single_class_has_no_area(train: Train) -> None:
    record = train(toy_images(classes=1, per_class=60), beta=1.0, rounds=1).records[0]
    assert "auc" not in record and record["balanced_accuracy"] == 1.0


def test_validation_images_are_the_clients_own(train: Train) -> None:
    session = train(val_fraction=0.25, rounds=1)
    held_out = session.held_out
    assert held_out.images is session.setting.train.images
    training = set(torch.cat([data.indices for data in session.clients]).tolist())
    assert len(held_out.index) > 0 and not training & set(held_out.index.tolist())
    assert "val_balanced_accuracy" in session.records[0] and "test_accuracy" not in session.records[0]
