"""The round loop alone, driven by hand with made-up answers."""

from __future__ import annotations

import pytest
import torch

from fedproc.errors import Diverged
from fedproc.methods import METHODS
from fedproc.methods.fedavg import Problem
from fedproc.protocol.payload import Payload, check
from fedproc.protocol.rounds import Plan, Progress, State, _own_models, cohort, first_state, play
from fedproc.protocol.task import SERVER, Answer, Kind, Task
from fedproc.protocol.weights import Weights

CLASSES, FEATURES = 2, 3


def make_plan(method: str = "fedavg", **changes: object) -> Plan:
    made = METHODS[method](METHODS[method].options_type(), Problem(4, CLASSES, FEATURES, 0))
    base: dict[str, object] = {
        "method": made,
        "rounds": 4,
        "client_sizes": [10, 30, 60],
        "sample": 1.0,
        "lr": 0.1,
        "eval_every": 1,
        "model_seed": 0,
        "batch_size": 8,
        "held_out": "test",
    }
    return Plan(**{**base, **changes})  # type: ignore[arg-type]


def start(plan: Plan) -> State:
    return first_state(plan.method, Weights(torch.zeros(2), torch.zeros(1), torch.zeros(1, dtype=torch.int64)))


def answer(plan: Plan, task: Task, value: float | None = None) -> Answer:
    """Client i returns parameters (i + 1, value), running statistic i + 1 and 3 + i batches."""
    i = task.client
    means = {"class_means": torch.full((CLASSES, FEATURES), float(i + 1)), "class_counts": torch.tensor([2, 0])}
    if task.kind is Kind.EVALUATE:
        assert i == SERVER
        tensors = {
            "confusion": torch.tensor([[4, 1], [2, 3]]),
            "prototype_correct": torch.tensor(6),
            "loss": torch.tensor(0.5, dtype=torch.float64),
            "auc": torch.tensor([0.75, 0.75], dtype=torch.float64),
            "auc_defined": torch.tensor([True, True]),
            "client_correct": torch.tensor([1, 2, 0]),
            "client_samples": torch.tensor([2, 8, 0]),
        }
        return Answer(task, Payload(tensors, {"samples": 10}), seconds={"evaluation": 1.0})
    if task.kind is Kind.PROTOTYPES:
        payload = Payload(means, {"samples": plan.client_sizes[i]})
        check(payload, task.expects)
        return Answer(task, payload, seconds={"prototypes": 1.0})
    tensors = {
        "params": torch.tensor([i + 1.0, value or 0.0]),
        "buffers": torch.tensor([i + 1.0]),
        "counters": torch.tensor([3 + i]),
        "losses": torch.tensor([1.0 * (i + 1)] * (1 + len(plan.method.terms)), dtype=torch.float64),
        **(means if plan.method.prototype_pass else {}),
    }
    payload = Payload(tensors, {"samples": plan.client_sizes[i], "steps": 2})
    check(payload, task.expects)
    return Answer(task, payload, seconds={"train": 2.0})


def run(plan: Plan, state: State | None = None) -> list[Progress]:
    loop = play(plan, state or start(plan))
    found = []
    step = next(loop)
    try:
        while True:
            if isinstance(step, Progress):
                found.append(step)
                step = loop.send(())
            else:
                step = loop.send([answer(plan, task) for task in step])
    except StopIteration:
        return found


def test_the_average_by_hand() -> None:
    # shares 0.1, 0.3, 0.6 of parameters 1, 2, 3: 0.1 + 0.6 + 1.8; the same for running statistics; counters 3, 4, 5
    first = run(make_plan(rounds=1))[1]
    assert first.state.weights.params.tolist() == pytest.approx([2.5, 0.0])
    assert first.state.weights.buffers.tolist() == pytest.approx([2.5])
    assert first.state.weights.counters.tolist() == [5]
    record = first.record
    assert record is not None
    assert record["train_loss"] == pytest.approx(0.1 * 1 + 0.3 * 2 + 0.6 * 3)
    assert record["update_norm"] == pytest.approx(2.5)
    assert record["client_drift"] == pytest.approx((1 + 2 + 3) / 3)
    assert record["samples"] == 3 * 2 * 8
    # up: 2 float32, 1 float32, 1 int64, 2 float64 losses, 2 counts each; down: the weights alone
    assert record["bytes_up"] == 3 * (8 + 4 + 8 + 16 + 16)
    assert record["bytes_down"] == 3 * (8 + 4 + 8)
    assert (record["test_accuracy"], record["prototype_accuracy"], record["test_loss"]) == (0.7, 0.6, 0.5)
    assert record["seconds"] == pytest.approx({"train": 6, "prototypes": 0, "merge": 0, "evaluation": 1}, abs=0.1)


def test_the_average_under_sampling_is_over_the_sampled_alone() -> None:
    plan = make_plan(sample=2 / 3, rounds=3)
    for t, progress in enumerate(run(plan)[1:]):
        chosen = cohort(plan, t)
        assert len(chosen) == 2
        total = sum(plan.client_sizes[i] for i in chosen)
        expected = sum(plan.client_sizes[i] / total * (i + 1) for i in chosen)
        assert progress.state.weights.params[0].item() == pytest.approx(expected)


def test_cohorts_differ_by_round_and_repeat() -> None:
    plan = make_plan(client_sizes=[1] * 100, sample=0.2)
    cohorts = [cohort(plan, t) for t in range(50)]
    assert all(len(set(c)) == 20 and c == sorted(c) for c in cohorts)
    assert len({tuple(c) for c in cohorts}) == 50
    assert cohorts == [cohort(plan, t) for t in range(50)]
    # 50 rounds of 20 of 100: each client is asked 10 times on average, deviation sqrt(50 * 0.2 * 0.8) = 2.8
    times = torch.bincount(torch.tensor(cohorts).flatten(), minlength=100)
    assert times.max() < 10 + 5 * 2.8 and times.min() >= 0 and times.float().mean() == 10


def test_evaluation_every_k_and_after_the_last() -> None:
    records = [p.record for p in run(make_plan(eval_every=3)) if p.record]
    assert ["test_accuracy" in r for r in records] == [False, False, True, True]
    assert ["prototype_accuracy" in r for r in records] == [False, False, True, True]


def test_fedproc_starts_with_a_pass_over_all_clients_whose_bytes_count() -> None:
    plan = make_plan("fedproc", sample=1 / 3, rounds=1)
    begun, first = run(plan)
    assert begun.record is None and begun.state.started
    # class 0 is held by clients with means 1, 2, 3, class 1 by nobody
    assert begun.state.kept["prototypes"][:, 0].tolist() == [2.0, 0.0]
    assert begun.state.kept["known"].tolist() == [True, False]
    means = CLASSES * FEATURES * 4 + CLASSES * 8
    assert first.record is not None
    assert first.record["bytes_up"] == 3 * (means + 8) + 1 * (8 + 4 + 8 + 24 + means + 16)
    assert first.record["bytes_down"] == 3 * 20 + 1 * (20 + CLASSES * FEATURES * 4 + CLASSES)
    assert first.record["seconds"]["prototypes"] == pytest.approx(3.0)


def test_a_loop_continued_from_a_state_asks_the_same() -> None:
    plan = make_plan("fedproc", sample=2 / 3)
    whole = run(plan)
    rest = run(plan, whole[2].state)
    assert [p.record["round"] for p in rest if p.record] == [3, 4]
    assert torch.equal(rest[-1].state.weights.params, whole[-1].state.weights.params)


def test_a_refused_answer_is_left_out_and_named() -> None:
    plan = make_plan(rounds=1)
    loop = play(plan, start(plan))
    assert isinstance(next(loop), Progress)
    tasks = loop.send(())
    assert isinstance(tasks, list)
    answers = [answer(plan, task) for task in tasks]
    answers[2] = Answer(tasks[2], None, "params is not finite")
    step = loop.send(answers)
    while not isinstance(step, Progress):
        step = loop.send([answer(plan, task) for task in step])
    assert step.record is not None
    assert step.record["refused"] == {"2": "params is not finite"}
    assert step.record["clients"] == 2
    assert step.state.weights.params[0].item() == pytest.approx(0.25 * 1 + 0.75 * 2)


def test_no_answer_left_is_divergence() -> None:
    plan = make_plan(rounds=1)
    loop = play(plan, start(plan))
    next(loop)
    tasks = loop.send(())
    assert isinstance(tasks, list)
    with pytest.raises(Diverged, match=r"round 1.*client 0 and 2 others: params is not finite.*--lr"):
        loop.send([Answer(task, None, "params is not finite") for task in tasks])


def test_models_of_clients_whose_prototypes_came_to_nothing_are_evaluated_too() -> None:
    weights = Weights(torch.ones(3), torch.zeros(0), torch.zeros(0, dtype=torch.int64))

    def answer(client: int, kind: Kind, tensors: dict[str, torch.Tensor]) -> Answer:
        return Answer(Task(kind, client, 0, Payload({}), {}), Payload(tensors))

    good = [answer(client, Kind.TRAIN, weights.tensors()) for client in (0, 1)]
    means = {"class_means": torch.ones(2, 4), "class_counts": torch.tensor([3.0, 0.0])}
    (_, first, known), (_, second, none) = _own_models(good, [answer(0, Kind.PROTOTYPES, means)])
    assert first.tolist() == means["class_means"].tolist() and known.tolist() == [True, False]
    assert second.tolist() == torch.zeros(2, 4).tolist() and none.tolist() == [False, False]
