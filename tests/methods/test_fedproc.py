from __future__ import annotations

import pytest
import torch
from conftest import Train, toy_images

from fedproc.methods.fedproc import FedProc, Options
from fedproc.methods.method import Answer, ClientProblem, ServerProblem


def method(rounds: int = 4, **options: object) -> FedProc:
    return FedProc(Options(**options), ClientProblem(classes=3, features=2), ServerProblem(rounds))


def test_linear_schedule_by_hand() -> None:
    assert [method().alpha(t) for t in range(4)] == [1.0, 0.75, 0.5, 0.25]


def test_author_code_schedule() -> None:
    code = method(rounds=200, horizon=100, first_round="cross-entropy")
    assert [code.alpha(t) for t in (0, 1, 50, 99, 100, 150)] == pytest.approx([0.0, 0.99, 0.5, 0.01, 0.0, 0.0])


def test_other_schedules_by_hand() -> None:
    assert [method(alpha=0.5).alpha(t) for t in (0, 3)] == [0.5, 0.5]
    assert [method(floor=0.2).alpha(t) for t in (0, 2)] == pytest.approx([1.0, 0.6])
    # 1 - (1 - cos(pi t/T))/2 at t/T = 0, 1/4, 1/2
    assert [method(schedule="cosine").alpha(t) for t in (0, 1, 2)] == pytest.approx([1.0, (1 + 0.5**0.5) / 2, 0.5])


def test_which_runs_can_be_continued_with_more_rounds() -> None:
    assert method().depends_on_rounds()
    assert method(schedule="cosine").depends_on_rounds()
    assert method(alpha=0.5).depends_on_rounds() is None
    assert method(horizon=100).depends_on_rounds() is None


def test_a_class_nobody_held_this_round_keeps_its_prototype() -> None:
    state = {
        "prototypes": torch.tensor([[9.0, 9.0], [5.0, 5.0], [0.0, 0.0]]),
        "known": torch.tensor([True, True, False]),
    }
    means = torch.tensor([[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]])
    answer = Answer(0, 4, 1, 1.0, {"class_means": means, "class_counts": torch.tensor([4, 0, 0])})
    after = method().receive(state, method().collect(state, {}, answer))
    assert after["prototypes"].tolist() == [[1.0, 2.0], [5.0, 5.0], [0.0, 0.0]]
    assert after["known"].tolist() == [True, True, False]


def test_starts() -> None:
    assert [each.name for each in method().opening()] == ["c0"]
    zeros = method(start="zeros")
    assert not zeros.opening() and not zeros.first_state(5)["known"].any()
    drawn = method(start="random").first_state(5)
    torch.testing.assert_close(drawn["prototypes"].norm(dim=1), torch.ones(3))
    assert drawn["known"].all()


def test_alpha_zero_is_fedavg_bit_for_bit(train: Train) -> None:
    images = toy_images(absent=3)
    average = train(images, method="fedavg", rounds=3)
    proc = train(images, method="fedproc", rounds=3, fedproc={"alpha": 0.0})
    assert torch.equal(average.state.weights.params, proc.state.weights.params)
    assert [r["test_accuracy"] for r in average.records] == [r["test_accuracy"] for r in proc.records]


@pytest.mark.parametrize(
    "options",
    [
        {"combine": "add"},
        {"start": "zeros"},
        {"start": "random"},
        {"weighting": "count"},
        {"pass_mode": "training"},
        {"tau": 0.2},
        {"schedule": "cosine", "floor": 0.1},
        {"alpha": 0.5},
        {"first_round": "cross-entropy"},
    ],
)
def test_every_option_changes_the_result(train: Train, options: dict[str, object]) -> None:
    given = {"beta": 0.5, "rounds": 3}
    plain, other = (train(fedproc=o, **given).state for o in ({}, options))
    assert torch.isfinite(other.weights.params).all()
    assert not torch.equal(plain.weights.params, other.weights.params)


def test_add_keeps_cross_entropy_at_one(train: Train) -> None:
    record = train(fedproc={"combine": "add"}, rounds=2).records[1]
    expected = record["train_cross_entropy"] + 0.5 * record["train_prototype_loss"]
    assert record["train_loss"] == pytest.approx(expected, rel=1e-6)


def test_trade_mixes_the_terms(train: Train) -> None:
    records = train(rounds=2).records
    assert records[0]["alpha"] == 1.0 and records[0]["train_loss"] == pytest.approx(records[0]["train_prototype_loss"])
    expected = 0.5 * records[1]["train_cross_entropy"] + 0.5 * records[1]["train_prototype_loss"]
    assert records[1]["train_loss"] == pytest.approx(expected, rel=1e-6)
