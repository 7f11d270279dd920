"""The round loop of one experiment, as a generator (Algorithm 1 of the paper, the server's side).

It yields lists of tasks and is sent their checked answers; between rounds it yields the finished state.
It knows nothing of lanes, networks or wires: a simulator drives many of these, a federation one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    held_out: str = "test"  # or "val": what the driver evaluates on
    merge: str = "mean"
    server_step: str = "replace"
    lr_schedule: str = "constant"
    lr_floor: float = 0.0
    average_weights: float = 0.0  # d of a <- d a + (1 - d) w; 0: no average is kept
    send_averaged: bool = False
    classifier: slice = field(
        default_factory=lambda: slice(0, 0)
    )  # where the classifier's parameters lie, for rounds that train it alone

    def depends_on_rounds(self) -> str | None:
        """What makes a run of T rounds differ from the first T of a longer one, if anything does."""
        if self.lr_schedule != "constant":
            return "the learning rate falls over all rounds"
        return self.method.depends_on_rounds()

    def lr_at(self, t: int) -> float:
        """The learning rate of round t."""
        done = t / self.rounds
        if self.lr_schedule == "constant":
            return self.lr
        fallen = done if self.lr_schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
        return self.lr - (self.lr - self.lr_floor) * fallen


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
    begun = method.begin(weights.params.shape[-1])
    return State(0, False, weights, {name: tensor.to(weights.params.device) for name, tensor in begun.items()})


def cohort(plan: Plan, t: int) -> list[int]:
    """The clients of round t, in order: a sample without replacement, by a stream of its own."""
    count = len(plan.client_sizes)
    taken = count if plan.method.own_models else max(1, round(plan.sample * count))
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
    clean = plan.method.prototype_pass != "training"
    tasks = [_prototype_task(plan, client, 0, state.weights, clean) for client in clients]
    answers = _good((yield tasks), 0)
    payloads = _payloads(answers)
    kept = plan.method.receive(state.kept, payloads)
    up, down = sum(p.bytes for p in payloads), sum(task.payload.bytes for task in tasks)
    seconds = sum(answer.seconds.get("prototypes", 0.0) for answer in answers)
    return replace(state, started=True, kept=kept, bytes_up=up, bytes_down=down), seconds


def _round(plan: Plan, state: State) -> Asking:
    t, method = state.round, plan.method
    settings = {"lr": plan.lr_at(t), **method.settings(t)}
    sent = _averaged(state) if plan.send_averaged and "averaged_params" in state.kept else state.weights
    payload = Payload({**sent.tensors(), **method.send(state.kept)})
    expects = _expected_training(plan, state.weights)
    epochs, trains = method.epochs(t), method.trains(t)
    tasks = [Task(Kind.TRAIN, client, t, payload, expects, settings, epochs, trains) for client in cohort(plan, t)]
    answers: Sequence[Answer] = yield tasks
    good = _good(answers, t)
    payloads = _payloads(good)

    began = time.perf_counter()
    trained = _trained(method, payloads)
    weights, kept = _merged(plan, state, sent, trained)
    kept = method.receive(kept, payloads)
    weights = replace(weights, params=method.finish(weights.params, kept))
    if plan.average_weights and not method.own_models:
        kept = {**kept, **_average(plan.average_weights, kept, weights)}
    drift = [float((c.weights.params - sent.params).norm()) for c in trained]
    merging = time.perf_counter() - began

    losses = _losses(trained, payloads)
    crossing = not (method.own_models or method.one_place)
    record: Record = {
        "round": t + 1,
        "train_loss": losses[0],
        **{f"train_{name}": value for name, value in zip(method.terms, losses[1:], strict=True)},
        "lr": settings["lr"],
        "alpha": settings.get("alpha", 0.0),
        "clients": len(good),
        "samples": sum(p.counts["steps"] * min(plan.batch_size, p.counts["samples"]) for p in payloads),
        "bytes_up": state.bytes_up + sum(p.bytes for p in payloads) if crossing else 0,
        "bytes_down": state.bytes_down + payload.bytes * len(tasks) if crossing else 0,
    }
    if not method.own_models:
        record["update_norm"] = float((weights.params - state.weights.params).norm())
        record["client_drift"] = sum(drift) / len(drift)
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
        state, measured, seconds["evaluation"] = yield from _evaluate(plan, state, good)
        record |= measured
    record["seconds"] = seconds
    return state, record


def _merged(
    plan: Plan, state: State, sent: Weights, trained: Sequence[Trained]
) -> tuple[Weights, Mapping[str, Tensor]]:
    """The next model and what the server step keeps; models that nobody merges leave both as they are."""
    method = plan.method
    if method.own_models:
        return state.weights, state.kept
    merged = MERGES[plan.merge](sent.params, trained, method.problem.momentum)
    params, kept = SERVER_STEPS[plan.server_step](sent.params, merged, state.kept, method.step_numbers())
    if method.trains(state.round) == "classifier":  # what is frozen stays to the bit, whatever momentum the server has
        frozen = params
        params = sent.params.clone()
        params[plan.classifier] = frozen[plan.classifier]
    return Weights(params, *merge_statistics(trained)), kept


def _average(d: float, kept: Mapping[str, Tensor], weights: Weights) -> dict[str, Tensor]:
    """a <- d a + (1 - d) w, started at the first averaged model; float buffers likewise."""
    new = {"averaged_params": weights.params, "averaged_buffers": weights.buffers}
    return {name: d * kept[name] + (1 - d) * tensor if name in kept else tensor for name, tensor in new.items()}


def _averaged(state: State) -> Weights:
    return Weights(state.kept["averaged_params"], state.kept["averaged_buffers"], state.weights.counters)


def _own_models(good: Sequence[Answer], diagnosed: Sequence[Answer]) -> list[tuple[Weights, Tensor, Tensor]]:
    """Each client's model with its own prototypes, of which it knows none where they came to nothing."""
    of = {a.task.client: a.payload.tensors for a in diagnosed if a.payload}
    nothing = {name: torch.zeros_like(tensor) for name, tensor in next(iter(of.values())).items()}
    models = []
    for answer in good:
        if answer.payload:
            own = of.get(answer.task.client, nothing)
            models.append((Weights.of(answer.payload.tensors), own["class_means"], own["class_counts"] > 0))
    return models


def _evaluate(plan: Plan, state: State, good: Sequence[Answer]) -> Asking:
    """The state (with diagnostic prototypes, where a method has none), what was measured, and the seconds.

    Prototypes that are a diagnostic alone are left out of bytes and timings.
    """
    method = plan.method
    diagnosed: list[Answer] = []
    if method.prototype_pass is None:
        tasks = [
            _prototype_task(plan, a.task.client, a.task.round, Weights.of(a.payload.tensors)) for a in good if a.payload
        ]
        diagnosed = _good((yield tasks), state.round - 1)
        means = _payloads(diagnosed)
        merged, known = merge_prototypes(
            [p.tensors["class_means"] for p in means], [p.tensors["class_counts"] for p in means], "uniform"
        )
        state = replace(state, kept={**state.kept, "prototypes": merged, "known": known})
    if method.own_models:
        models = _own_models(good, diagnosed)
        found, seconds = yield from _measure(plan, state, models)
        measured = evaluate.mean_measures(found)
        theirs = [each["client_accuracies"][a.task.client] for each, a in zip(found, good, strict=True)]
        held = [accuracy for accuracy in theirs if accuracy is not None]
        if held:  # each client's own model on its own share
            measured |= {"client_accuracy_mean": statistics.fmean(held), "client_accuracy_worst": min(held)}
        accuracies = [each["accuracy"] for each in found]
        if len(accuracies) > 1:
            measured["accuracy_deviation"] = statistics.stdev(accuracies)
        return state, _named(plan, measured), seconds
    prototypes, known = state.kept["prototypes"], state.kept["known"]
    models = [(state.weights, prototypes, known)]
    if plan.average_weights:
        models.append((_averaged(state), prototypes, known))
    found, seconds = yield from _measure(plan, state, models)
    measured = _named(plan, found[0])
    if plan.average_weights:
        names = ("accuracy", "loss", "prototype_accuracy")
        measured |= {f"{_prefix(plan)}averaged_{name}": found[1][name] for name in names}
    return state, measured, seconds


def _measure(plan: Plan, state: State, models: Sequence[tuple[Weights, Tensor, Tensor]]) -> Asking:
    expects = evaluate.expected(plan.method.problem.classes, len(plan.client_sizes))
    tasks = []
    for weights, prototypes, known in models:
        payload = Payload({**weights.tensors(), "prototypes": prototypes, "known": known})
        tasks.append(Task(Kind.EVALUATE, SERVER, state.round - 1, payload, expects))
    answers: Sequence[Answer] = yield tasks
    for answer in answers:
        if answer.payload is None:
            raise Diverged(state.round, f"the averaged model cannot be evaluated: {answer.refused}")
    seconds = sum(answer.seconds.get("evaluation", 0.0) for answer in answers)
    return [evaluate.measures(payload) for payload in _payloads(answers)], seconds


def _prefix(plan: Plan) -> str:
    return "" if plan.held_out == "test" else "val_"


def _named(plan: Plan, measured: Record) -> Record:
    """test_accuracy and test_loss, the rest by their own names; with a validation split all begin with val_."""
    prefix = _prefix(plan)
    test = {"accuracy", "loss", "accuracy_deviation"} if not prefix else set()
    shown = {name: value for name, value in measured.items() if name != "client_accuracies"}
    return {(f"test_{name}" if name in test else prefix + name): value for name, value in shown.items()}


def _prototype_task(plan: Plan, client: int, t: int, weights: Weights, clean: bool = True) -> Task:
    expects = Expected(_class_means(plan, weights), frozenset({"samples"}))
    return Task(Kind.PROTOTYPES, client, t, Payload(weights.tensors()), expects, clean=clean)


def _class_means(plan: Plan, weights: Weights) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    problem = plan.method.problem
    return {
        "class_means": ((problem.classes, problem.features), weights.params.dtype),
        "class_counts": ((problem.classes,), torch.int64),
    }


def _expected_training(plan: Plan, weights: Weights) -> Expected:
    method = plan.method
    tensors = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.tensors().items()}
    tensors["losses"] = ((1 + len(method.terms),), torch.float64)
    tensors |= method.returned(weights.params.shape[-1], weights.params.dtype)
    if method.prototype_pass is not None:
        tensors |= _class_means(plan, weights)
    return Expected(tensors, frozenset({"samples", "steps"}))


def _payloads(answers: Sequence[Answer]) -> list[Payload]:
    return [answer.payload for answer in answers if answer.payload is not None]


def _good(answers: Sequence[Answer], t: int) -> list[Answer]:
    good = [answer for answer in answers if answer.payload is not None]
    if not good:
        first = answers[0]
        others = f" and {len(answers) - 1} others" if len(answers) > 1 else ""
        raise Diverged(t + 1, f"no usable answer; client {first.task.client}{others}: {first.refused}")
    return good


def _trained(method: FedAvg, payloads: Sequence[Payload]) -> list[Trained]:
    shares = method.shares([payload.counts["samples"] for payload in payloads])
    return [
        Trained(Weights.of(payload.tensors), share, payload.counts["steps"])
        for payload, share in zip(payloads, shares, strict=True)
    ]


def _losses(trained: Sequence[Trained], payloads: Sequence[Payload]) -> list[float]:
    """Total loss and terms, averaged over the clients by their samples."""
    rows = [p.tensors["losses"].tolist() for p in payloads]
    return [sum(c.share * row[i] for c, row in zip(trained, rows, strict=True)) for i in range(len(rows[0]))]
