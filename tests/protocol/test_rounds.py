"""The round loop alone, driven by hand with made-up answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedproc.errors import Diverged
from fedproc.methods import METHODS
from fedproc.methods.checked_server import CheckedServer
from fedproc.methods.merges import MERGES
from fedproc.methods.method import ClientProblem, ServerProblem
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.protocol.diagnostics import Diagnostics
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.payload import Payload
from fedproc.protocol.plan import Plan, Progress, State, cohort, first_state
from fedproc.protocol.rounds import play, played
from fedproc.protocol.task import SERVER, Kind, Reply, Task
from fedproc.protocol.weights import Weights

CLASSES, FEATURES = 2, 3
SIZES = [10, 30, 60]


def make_plan(method: str = "fedavg", sizes: list[int] = SIZES, **changes: object) -> Plan:
    kind = METHODS[method]
    made = kind(kind.options_type(), ClientProblem(CLASSES, FEATURES), ServerProblem(4))
    base: dict[str, object] = {
        "method": CheckedServer(made),
        "rounds": 4,
        "clients": [f"site-{i}" for i in range(len(sizes))],
        "sample": 1.0,
        "lr": 0.1,
        "eval_every": 1,
        "model_seed": 0,
        "batch_size": 8,
        "held_out": "test",
        "merge": MERGES[made.merge],
        "server_step": SERVER_STEPS[made.server_step],
    }
    return Plan(**{**base, **changes})  # type: ignore[arg-type]


def start(plan: Plan) -> State:
    return first_state(plan, Weights(torch.zeros(2), torch.zeros(1), torch.zeros(1, dtype=torch.int64)))


def answer(plan: Plan, task: Task, value: float = 0.0) -> Reply:
    """Client i returns parameters (i + 1, value), running statistic i + 1 and 3 + i batches."""
    i = task.client
    means = {"class_means": torch.full((CLASSES, FEATURES), float(i + 1)), "class_counts": torch.tensor([2, 0])}
    if task.kind is Kind.DESCRIBE:
        return Reply(Payload({}, {"samples": SIZES[i]}))
    if task.kind is Kind.EVALUATE:
        assert i == SERVER
        tensors = {
            "confusion": torch.tensor([[4, 1], [2, 3]]),
            "prototype_correct": torch.tensor(6),
            "loss": torch.tensor(0.5, dtype=torch.float64),
            "auc": torch.tensor([0.75, 0.75], dtype=torch.float64),
            "auc_defined": torch.tensor([True, True]),
            "client_correct": torch.tensor([[1, 0], [0, 2], [0, 0]]),
            "client_samples": torch.tensor([[2, 0], [4, 4], [0, 0]]),
        }
        return Reply(Payload(tensors, {"samples": 10}), seconds={"evaluation": 1.0})
    if task.kind is Kind.CLASS_MEANS:
        return Reply(Payload(means, {"samples": SIZES[i]}), seconds={"prototypes": 1.0})
    tensors = {
        "params": torch.tensor([i + 1.0, value]),
        "buffers": torch.tensor([i + 1.0]),
        "counters": torch.tensor([3 + i]),
        "losses": torch.tensor([1.0 * (i + 1)] * (1 + len(plan.method.term_names())), dtype=torch.float64),
        **(means if task.means else {}),
    }
    return Reply(Payload(tensors, {"samples": SIZES[i], "steps": 2}), seconds={"train": 2.0})


Change = Callable[[Task, Reply], Reply]


def run(plan: Plan, state: State | None = None, change: Change = lambda task, reply: reply) -> list[Progress]:
    return list(played(plan, state or start(plan), lambda task: change(task, answer(plan, task))))


def refusing(*clients: int) -> Change:
    def change(task: Task, reply: Reply) -> Reply:
        return Reply(None, "the disk is full") if task.kind is Kind.TRAIN and task.client in clients else reply

    return change


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
    # up: 2 float32, 1 float32, 1 int64, 2 float64 losses, 2 counts each (class means only observe); down: the weights
    assert record["bytes_up"] == 3 * (8 + 4 + 8 + 16 + 16)
    assert record["bytes_down"] == 3 * (8 + 4 + 8)
    assert (record["test_accuracy"], record["prototype_accuracy"], record["test_loss"]) == (0.7, 0.6, 0.5)
    assert record["seconds"] == pytest.approx({"train": 6, "prototypes": 0, "merge": 0, "evaluation": 1}, abs=0.1)


def test_the_average_under_sampling_is_over_the_sampled_alone() -> None:
    plan = make_plan(sample=2 / 3, rounds=3)
    for t, progress in enumerate(run(plan)[1:]):
        chosen = cohort(plan, SIZES, t)
        assert len(chosen) == 2
        total = sum(SIZES[i] for i in chosen)
        expected = sum(SIZES[i] / total * (i + 1) for i in chosen)
        assert progress.state.weights.params[0].item() == pytest.approx(expected)


def test_cohorts_differ_by_round_and_repeat() -> None:
    plan, sizes = make_plan(sample=0.2), [1] * 100
    cohorts = [cohort(plan, sizes, t) for t in range(50)]
    assert all(len(set(c)) == 20 and c == sorted(c) for c in cohorts)
    assert len({tuple(c) for c in cohorts}) == 50
    assert cohorts == [cohort(plan, sizes, t) for t in range(50)]
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
    assert begun.state.method["prototypes"][:, 0].tolist() == [2.0, 0.0]
    assert begun.state.method["known"].tolist() == [True, False]
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
    record = run(make_plan(rounds=1), change=refusing(2))[-1].record
    assert record is not None
    assert record["refused"] == {"2": "the disk is full"}
    assert record["clients"] == 2
    last = run(make_plan(rounds=1), change=refusing(2))[-1].state
    # the shares of those that answered: 10 and 30 of 40
    assert last.weights.params[0].item() == pytest.approx(0.25 * 1 + 0.75 * 2)
    assert last.weights.buffers.item() == pytest.approx(0.25 * 1 + 0.75 * 2)
    assert record["train_loss"] == pytest.approx(0.25 * 1 + 0.75 * 2)
    assert last.accepted == (0, 0, -1)


def test_bytes_of_refused_answers_came_up_too() -> None:
    def wrong(task: Task, reply: Reply) -> Reply:
        if task.kind is not Kind.TRAIN or task.client != 1 or reply.payload is None:
            return reply
        tensors = {**reply.payload.tensors, "params": torch.tensor([torch.nan, 0.0])}
        return Reply(Payload(tensors, reply.payload.counts))

    whole, refused = run(make_plan(rounds=1))[-1].record, run(make_plan(rounds=1), change=wrong)[-1].record
    assert whole is not None and refused is not None
    assert refused["refused"] == {"1": "params is not finite"} and refused["bytes_up"] == whole["bytes_up"]


def test_no_answer_left_is_divergence() -> None:
    with pytest.raises(Diverged, match=r"round 1.*client 0 and 2 others: the disk is full.*lr"):
        run(make_plan(rounds=1), change=refusing(0, 1, 2))


def test_answers_may_come_in_any_order_and_count_in_the_clients() -> None:
    plan = make_plan(rounds=1)
    ends = []
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        for step in play(plan, start(plan)):
            if isinstance(step, Exchange):
                places = order if len(step.tasks) == 3 else range(len(step.tasks))
                for place in places:
                    step.take(place, answer(plan, step.tasks[place], 0.1))
            else:
                last = step
        ends.append(last.state.weights.params)
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


def test_an_exchange_takes_each_answer_once_and_all_of_them() -> None:
    plan = make_plan(rounds=1)
    loop = play(plan, start(plan))
    exchange = next(loop)
    assert isinstance(exchange, Exchange) and exchange.kind is Kind.DESCRIBE
    exchange.take(0, answer(plan, exchange.tasks[0]))
    with pytest.raises(ValueError, match="answered already"):
        exchange.take(0, answer(plan, exchange.tasks[0]))
    with pytest.raises(ValueError, match="expected a reply to every task"):
        next(loop)


def test_sizes_are_learnt_and_whoever_does_not_tell_takes_no_part() -> None:
    def silent(task: Task, reply: Reply) -> Reply:
        return Reply(None, "no such classes here") if task.kind is Kind.DESCRIBE and task.client == 0 else reply

    plan = make_plan(rounds=2)
    first = run(plan, change=silent)[1]
    assert first.state.sizes == (0, 30, 60)
    assert first.record is not None and first.record["clients"] == 2
    assert first.state.weights.params[0].item() == pytest.approx((30 * 2 + 60 * 3) / 90)
    with pytest.raises(Diverged, match="no such classes here"):
        run(plan, change=lambda task, reply: Reply(None, "no such classes here"))


def test_a_client_that_trained_on_other_samples_than_it_told_is_refused() -> None:
    def other(task: Task, reply: Reply) -> Reply:
        if task.kind is not Kind.TRAIN or task.client != 1 or reply.payload is None:
            return reply
        return Reply(Payload(reply.payload.tensors, {**reply.payload.counts, "samples": 31}))

    record = run(make_plan(rounds=1), change=other)[-1].record
    assert record is not None and record["refused"] == {"1": "samples is 31, expected 30"}


def test_tasks_carry_what_a_remote_client_needs() -> None:
    seen: list[Task] = []

    def note(task: Task, reply: Reply) -> Reply:
        seen.append(task)
        return reply if task.kind is not Kind.TRAIN or (task.round, task.client) != (0, 1) else Reply(None, "busy")

    run(make_plan(rounds=2, run="trial-7"), change=note)
    trained = [(t.round, t.client, t.last_accepted, t.name) for t in seen if t.kind is Kind.TRAIN]
    assert trained == [
        (0, 0, -1, "site-0"), (0, 1, -1, "site-1"), (0, 2, -1, "site-2"),
        (1, 0, 0, "site-0"), (1, 1, -1, "site-1"), (1, 2, 0, "site-2"),
    ]  # fmt: skip
    assert {task.run for task in seen} == {"trial-7"}


def test_prototypes_that_only_observe_do_not_end_a_run() -> None:
    def unusable(task: Task, reply: Reply) -> Reply:
        if task.kind is not Kind.TRAIN or reply.payload is None:
            return reply
        means = torch.full((CLASSES, FEATURES), torch.inf)
        return Reply(Payload({**reply.payload.tensors, "class_means": means}, reply.payload.counts))

    last = run(make_plan(rounds=2), change=unusable)[-1]
    assert last.record is not None and "refused" not in last.record and last.record["round"] == 2


def test_an_infinite_number_is_on_record_as_nothing() -> None:
    def infinite(task: Task, reply: Reply) -> Reply:
        if task.kind is not Kind.TRAIN or reply.payload is None:
            return reply
        tensors = reply.payload.tensors
        return Reply(Payload({**tensors, "losses": tensors["losses"] * torch.inf}, reply.payload.counts))

    record = run(make_plan(rounds=1), change=infinite)[-1].record
    assert record is not None and record["train_loss"] is None and record["clients"] == 3


def test_a_long_move_of_float32_has_a_length() -> None:
    def far(task: Task, reply: Reply) -> Reply:
        if task.kind is not Kind.TRAIN or reply.payload is None:
            return reply
        tensors = {**reply.payload.tensors, "params": torch.tensor([3e30, 4e30])}
        return Reply(Payload(tensors, reply.payload.counts))

    record = run(make_plan(rounds=1), change=far)[-1].record
    assert record is not None
    assert record["update_norm"] == pytest.approx(5e30) and record["client_drift"] == pytest.approx(5e30)


def test_diagnostic_prototypes_remember_classes_as_fedprocs_do() -> None:
    """Round 1 has class 0 alone, round 2 class 1 alone; both are known then, for FedAvg as for FedProc."""

    def one_class(task: Task, reply: Reply) -> Reply:
        if task.kind not in (Kind.TRAIN, Kind.CLASS_MEANS) or reply.payload is None or not task.means:
            return reply
        held = torch.tensor([2, 0] if task.round == 0 else [0, 2])
        return Reply(Payload({**reply.payload.tensors, "class_counts": held}, reply.payload.counts))

    plan = make_plan(rounds=2)
    average = run(plan, change=one_class)[-1].state
    shown = Diagnostics.shown(average.diagnostics, CLASSES, FEATURES, average.weights.params)
    proc = run(make_plan("fedproc", rounds=2), change=one_class)[-1].state
    assert shown[1].tolist() == proc.method["known"].tolist() == [True, True]
    assert shown[0].tolist() == proc.method["prototypes"].tolist()


def test_models_of_clients_whose_prototypes_came_to_nothing_have_none() -> None:
    collected = Diagnostics({})
    means = {"class_means": torch.ones(2, 4), "class_counts": torch.tensor([3, 0])}
    collected.add(0, Payload(means))
    collected.add(1, Payload({}))
    nothing = (torch.zeros(2, 4), torch.zeros(2, dtype=torch.bool))
    first, second = collected.of(0, nothing), collected.of(1, nothing)
    assert first["prototypes"].tolist() == means["class_means"].tolist() and first["known"].tolist() == [True, False]
    assert second["prototypes"].tolist() == torch.zeros(2, 4).tolist() and second["known"].tolist() == [False, False]
