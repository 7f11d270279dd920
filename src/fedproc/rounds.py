"""The round loop of one experiment, as a generator (Algorithm 1 of the paper, the server's side).

It yields lists of tasks and is sent their checked answers; between rounds it yields the finished state.
It knows nothing of lanes, networks or wires: a simulator drives many of these, a federation one.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedproc import evaluate, streams
from fedproc.errors import Diverged
from fedproc.lanes.task import SERVER, Answer, Kind, Task
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.merges import MERGES, Trained, merge_statistics
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.networks.flat import Weights
from fedproc.payload import Expected, Payload
from fedproc.prototypes import merge as merge_prototypes

Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What the loop needs of the experiment."""

    method: FedAvg
    rounds: int
    client_sizes: Sequence[int]
    sample: float
    lr: float
    eval_every: int
    model_seed: int
    batch_size: int
    held_out: str  # "test" or "val": what the driver evaluates on


@dataclass(frozen=True)
class State:
    """Everything between two rounds: rounds done, the model, what the method keeps, bytes not yet on record."""

    round: int
    started: bool
    weights: Weights
    kept: Mapping[str, Tensor]
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class Progress:
    """A state to continue from, and the record of the round that led to it (None: the start alone)."""

    state: State
    record: Record | None


Loop = Generator[list[Task] | Progress, Sequence[Answer], None]
Asking = Generator[list[Task] | Progress, Sequence[Answer], Any]


def first_state(method: FedAvg, weights: Weights) -> State:
    """The state before anything happened."""
    kept = {name: tensor.to(weights.params.device) for name, tensor in method.begin().items()}
    return State(0, False, weights, kept)


def cohort(plan: Plan, t: int) -> list[int]:
    """The clients of round t, in order: a sample without replacement, by a stream of its own."""
    count = len(plan.client_sizes)
    taken = max(1, round(plan.sample * count))
    if taken == count:
        return list(range(count))
    order = streams.order(streams.key(plan.model_seed, streams.Purpose.COHORT, t), count)
    return sorted(order[:taken].tolist())


def play(plan: Plan, state: State) -> Loop:
    """The rounds from `state` to the last."""
    start_seconds = 0.0
    if not state.started:
        state, start_seconds = yield from _start(plan, state)
        yield Progress(state, None)
    while state.round < plan.rounds:
        state, record = yield from _round(plan, state)
        record["seconds"]["prototypes"] += start_seconds
        start_seconds = 0.0
        yield Progress(state, record)


def _start(plan: Plan, state: State) -> Asking:
    """c0: class means of the initial weights over all clients' data, for methods that want them."""
    if not plan.method.starts_with_prototypes:
        return replace(state, started=True), 0.0
    clients = range(len(plan.client_sizes))
    tasks = [_prototype_task(plan, client, 0, state.weights) for client in clients]
    answers = _good((yield tasks), 0)
    payloads = [answer.payload for answer in answers if answer.payload]
    kept = plan.method.receive(state.kept, payloads)
    up, down = sum(p.bytes for p in payloads), sum(task.payload.bytes for task in tasks)
    seconds = sum(answer.seconds.get("prototypes", 0.0) for answer in answers)
    return replace(state, started=True, kept=kept, bytes_up=up, bytes_down=down), seconds


def _round(plan: Plan, state: State) -> Asking:
    t, method = state.round, plan.method
    settings = {"lr": plan.lr, **method.settings(t)}
    payload = Payload({**state.weights.tensors(), **method.send(state.kept)})
    expects = _expected_training(plan, state.weights)
    tasks = [Task(Kind.TRAIN, client, t, payload, expects, settings) for client in cohort(plan, t)]
    answers: Sequence[Answer] = yield tasks
    good = _good(answers, t)

    began = time.perf_counter()
    trained = _trained(good)
    merged = MERGES[method.merge](state.weights.params, trained)
    params, kept = SERVER_STEPS[method.server_step](state.weights.params, merged, state.kept)
    weights = Weights(params, *merge_statistics(trained))
    payloads = [answer.payload for answer in good if answer.payload]
    kept = method.receive(kept, payloads)
    drift = [float((c.weights.params - state.weights.params).norm()) for c in trained]
    merging = time.perf_counter() - began

    up = state.bytes_up + sum(p.bytes for p in payloads)
    down = state.bytes_down + payload.bytes * len(tasks)
    losses = _losses(trained, payloads)
    record: Record = {
        "round": t + 1,
        "train_loss": losses[0],
        **{f"train_{name}": value for name, value in zip(method.terms, losses[1:], strict=True)},
        "alpha": settings.get("alpha", 0.0),
        "clients": len(good),
        "samples": sum(p.counts["steps"] * min(plan.batch_size, p.counts["samples"]) for p in payloads),
        "bytes_up": up,
        "bytes_down": down,
        "update_norm": float((params - state.weights.params).norm()),
        "client_drift": sum(drift) / len(drift),
    }
    refused = {str(a.task.client): a.refused for a in answers if a.refused}
    if refused:
        record["refused"] = refused
    seconds = {
        "train": sum(a.seconds.get("train", 0.0) for a in answers),
        "prototypes": sum(a.seconds.get("prototypes", 0.0) for a in answers),
        "merge": merging,
        "evaluation": 0.0,
    }
    state = State(t + 1, True, weights, kept)
    if (t + 1) % plan.eval_every == 0 or t + 1 == plan.rounds:
        if method.prototype_pass is None:
            state = replace(state, kept=(yield from _diagnose(plan, state, good)))
        measured, seconds["evaluation"] = yield from _evaluate(plan, state)
        record |= measured
    record["seconds"] = seconds
    return state, record


def _diagnose(plan: Plan, state: State, good: Sequence[Answer]) -> Asking:
    """Prototypes of the round's clients for a method that has none: left out of bytes and timings."""
    tasks = [
        _prototype_task(plan, a.task.client, a.task.round, Weights.of(a.payload.tensors)) for a in good if a.payload
    ]
    payloads = [answer.payload for answer in _good((yield tasks), state.round - 1) if answer.payload]
    means = [payload.tensors["class_means"] for payload in payloads]
    merged, known = merge_prototypes(means, [p.tensors["class_counts"] for p in payloads], "uniform")
    return {**state.kept, "prototypes": merged, "known": known}


def _evaluate(plan: Plan, state: State) -> Asking:
    kept = {"prototypes": state.kept["prototypes"], "known": state.kept["known"]}
    payload = Payload({**state.weights.tensors(), **kept})
    (answer,) = yield [Task(Kind.EVALUATE, SERVER, state.round - 1, payload, evaluate.EXPECTED)]
    if answer.payload is None:
        raise Diverged(state.round, f"the averaged model cannot be evaluated: {answer.refused}")
    tensors, samples = answer.payload.tensors, answer.payload.counts["samples"]
    nearest = "prototype_accuracy" if plan.held_out == "test" else "val_prototype_accuracy"
    measured = {
        f"{plan.held_out}_accuracy": int(tensors["correct"]) / samples,
        nearest: int(tensors["prototype_correct"]) / samples,
        f"{plan.held_out}_loss": float(tensors["loss"]),
    }
    return measured, answer.seconds.get("evaluation", 0.0)


def _prototype_task(plan: Plan, client: int, t: int, weights: Weights) -> Task:
    expects = Expected(_class_means(plan, weights), frozenset({"samples"}))
    return Task(Kind.PROTOTYPES, client, t, Payload(weights.tensors()), expects)


def _class_means(plan: Plan, weights: Weights) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    problem = plan.method.problem
    return {
        "class_means": ((problem.classes, problem.features), weights.params.dtype),
        "class_counts": ((problem.classes,), torch.int64),
    }


def _expected_training(plan: Plan, weights: Weights) -> Expected:
    tensors = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.tensors().items()}
    tensors["losses"] = ((1 + len(plan.method.terms),), torch.float64)
    if plan.method.prototype_pass is not None:
        tensors |= _class_means(plan, weights)
    return Expected(tensors, frozenset({"samples", "steps"}))


def _good(answers: Sequence[Answer], t: int) -> list[Answer]:
    good = [answer for answer in answers if answer.payload is not None]
    if not good:
        first = answers[0]
        others = f" and {len(answers) - 1} others" if len(answers) > 1 else ""
        raise Diverged(t + 1, f"no usable answer; client {first.task.client}{others}: {first.refused}")
    return good


def _trained(good: Sequence[Answer]) -> list[Trained]:
    payloads = [answer.payload for answer in good if answer.payload]
    total = sum(payload.counts["samples"] for payload in payloads)
    return [Trained(Weights.of(p.tensors), p.counts["samples"] / total, p.counts["steps"]) for p in payloads]


def _losses(trained: Sequence[Trained], payloads: Sequence[Payload]) -> list[float]:
    """Total loss and terms, averaged over the clients by their samples."""
    rows = [p.tensors["losses"].tolist() for p in payloads]
    return [sum(c.share * row[i] for c, row in zip(trained, rows, strict=True)) for i in range(len(rows[0]))]
