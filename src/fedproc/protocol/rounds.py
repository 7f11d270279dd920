"""The round loop of one experiment, as a generator (Algorithm 1 of the paper, the server's side).

It yields exchanges, whose tasks somebody has done, and between rounds the state to continue from. It knows nothing of
lanes, networks or wires: a simulator drives many of these with one pool of lanes, a federation one, a test one with
made-up answers (`played`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedproc.errors import Diverged
from fedproc.protocol import postprocess
from fedproc.protocol.agreement import Held
from fedproc.protocol.assessment import Assessment
from fedproc.protocol.diagnostics import Diagnostics
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.guard import Expected, Shapes
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.plan import Plan, Progress, Record, State, cohort
from fedproc.protocol.server_half import Answer, Pass, PrivateSum
from fedproc.protocol.sums import TrainingSums, length
from fedproc.protocol.task import Kind, MeansMode, Reply, Task
from fedproc.protocol.training import TrainingAnswers
from fedproc.protocol.weights import Weights

MEANS = frozenset({"class_means", "class_counts"})


Step = Exchange | Progress


def play(plan: Plan, state: State) -> Iterator[Step]:
    """The rounds from `state` to the last."""
    if not state.sizes:
        state = yield from _describe(plan, state)
    plan = replace(plan, method=plan.method.knowing(state.sizes))
    opening_seconds = 0.0
    if not state.started:
        state, opening_seconds = yield from _open(plan, state)
        yield Progress(state, None)
    while not plan.over(state):
        state, record = yield from _Round(plan, state).play()
        record["seconds"]["prototypes"] += opening_seconds
        opening_seconds = 0.0
        yield Progress(state, record)


def played(plan: Plan, state: State, reply_to: Callable[[Task], Reply]) -> Iterator[Progress]:
    """The rounds, with somebody who answers one task after the other."""
    for step in play(plan, state):
        if isinstance(step, Progress):
            yield step
            continue
        for place, task in enumerate(step.tasks):
            step.take(place, reply_to(task))


def _describe(plan: Plan, state: State) -> Generator[Step, None, State]:
    """Learn the clients' sizes. Whoever does not tell takes no part."""
    expects = Expected({}, {"samples": None})
    sizes = [0] * len(plan.clients)

    def note(task: Task, payload: Payload) -> None:
        sizes[task.client] = payload.counts["samples"]

    exchange = Exchange(
        [
            Task(Kind.DESCRIBE, client, 0, Payload({}), expects, run=plan.run, name=name)
            for client, name in enumerate(plan.clients)
        ],
        note,
    )
    yield exchange
    _expect_answers(exchange, 0)
    return replace(state, sizes=tuple(sizes), accepted=(-1,) * len(sizes))


def _open(plan: Plan, state: State) -> Generator[Step, None, tuple[State, float]]:
    """What a method asks before the first round: FedProc's c0."""
    method, up, down, seconds = state.method, 0, 0, 0.0
    everyone = [client for client, size in enumerate(state.sizes) if size]
    for which in plan.method.opening():
        method, exchange = yield from _pass(plan, state, which, everyone, state.weights, method)
        up, down = up + exchange.bytes_up, down + exchange.bytes_down
        seconds += exchange.seconds.get("prototypes", 0.0)
    return replace(state, started=True, method=method, bytes_up=up, bytes_down=down), seconds


def _pass(
    plan: Plan, state: State, which: Pass, asked: Sequence[int], weights: Weights, own: Tensors
) -> Generator[Step, None, tuple[Tensors, Exchange]]:
    """Class means of the clients under one model, or their counts alone, and what the method makes of them."""
    shapes = dict(_means_shapes(plan, weights))
    if which.counts_only:
        del shapes["class_means"]
    if which.covariances:
        features = plan.method.features
        shapes["class_covariances"] = ((plan.method.classes, features, features), weights.params.dtype)
    expects = Expected(shapes, {"samples": None})
    sums: Tensors = {}

    def collect(task: Task, payload: Payload) -> None:
        nonlocal sums
        answer = Answer(task.client, payload.counts["samples"], 0, 0.0, payload.tensors)
        sums = plan.method.collect_pass(own, which, sums, answer)

    kind, payload, how = Kind.CLASS_MEANS, Payload(weights.tensors()), {"means": which.mode}
    if which.counts_only:
        kind, payload, how = Kind.CLASS_COUNTS, Payload({}), {}
    tasks = [plan.task(state, kind, client, payload, expects, **how, covariances=which.covariances) for client in asked]
    held = None if plan.rule is None else Held(plan.rule)
    exchange = Exchange(tasks, held.add if held else collect)
    if tasks:
        yield exchange
        _expect_answers(exchange, state.round)
    for task, _, answer in held.agreed() if held else ():
        collect(task, answer)
    return plan.method.receive_pass(own, which, sums), exchange


class _Round:
    """One round: passes before training, training, merge and server step, evaluation."""

    def __init__(self, plan: Plan, state: State) -> None:
        self._plan, self._before, self._t = plan, state, state.round
        self._method = plan.method
        sampled = cohort(plan, state.sizes, self._t)
        self._asked = list(self._method.participants(self._t, sampled))
        averaged = state.averaged if plan.send_averaged else None
        self._sent = averaged if averaged is not None else state.weights
        self._own = state.method
        self._up, self._down = state.bytes_up, state.bytes_down
        self._seconds = {"train": 0.0, "prototypes": 0.0, "merge": 0.0, "evaluation": 0.0}
        self._diagnostics = Diagnostics(state.diagnostics)
        self._refused: dict[str, str] = {}
        self._phases = self._method.phases(self._t)
        self._returns = any(phase.returns for phase in self._phases)
        self._privacy = state.privacy

    def play(self) -> Generator[Step, None, tuple[State, Record]]:
        plan, t = self._plan, self._t
        yield from self._passes(self._method.passes(t), self._sent)
        settings = {"lr": plan.lr_at(t), **self._method.settings(t)}
        sums = yield from self._train(settings)
        began = time.perf_counter()
        state = self._merged(sums)
        self._seconds["merge"] += time.perf_counter() - began
        record = self._record(sums, settings, state)
        if plan.evaluates(t):
            last = t + 1 == plan.rounds
            if last and (closing := self._method.closing()):
                # for the last evaluation: what comes of it is no part of the state, and on record by itself, since
                # a run that is continued with more rounds has another last one
                self._up, self._down, self._refused = 0, 0, {}
                yield from self._passes(closing, state.weights)
                record["closing"] = self._traffic()
            assessment = Assessment(plan, t, self._own, self._diagnostics, self._phases)
            measured, seconds, diagnostics = yield from assessment.evaluate(state, last)
            self._seconds["evaluation"] += seconds
            record |= measured
            state = replace(state, diagnostics=diagnostics, kept=assessment.kept(state, diagnostics, record))
            if plan.keep == "best" and plan.over(state) and state.kept is not None:
                record["kept"], seconds = yield from assessment.test(state, state.kept)
                self._seconds["evaluation"] += seconds
        record["seconds"] = self._seconds
        return state, _without_infinities(record)

    def _passes(self, passes: Sequence[Pass], weights: Weights) -> Generator[Step, None, None]:
        for which in passes:
            asked = self._asked if which.of == "participants" else self._before.there
            self._own, exchange = yield from _pass(self._plan, self._before, which, asked, weights, self._own)
            self._note(exchange)

    def _note(self, exchange: Exchange) -> None:
        self._up += exchange.bytes_up
        self._down += exchange.bytes_down
        for name, spent in exchange.seconds.items():
            if name in self._seconds:  # diagnostics are left out of timings
                self._seconds[name] += spent
        self._refused |= exchange.reasons()

    def _train(self, settings: Record) -> Generator[Step, None, TrainingSums]:
        plan, method, before, t = self._plan, self._method, self._before, self._t
        payload = Payload({**self._sent.tensors(), **method.send(self._own)})
        means = method.class_means(t) if self._returns else None
        private = self._private_sum(means)
        diagnose = plan.evaluates(t) and (method.prototypes(self._own) is None or not self._returns)
        diagnose = diagnose and private is None
        expects = self._expected_training(means, diagnose)
        samples = [before.sizes[client] for client in self._asked]
        answers = TrainingAnswers(
            plan, self._own, self._shared(self._sent), dict(zip(self._asked, samples, strict=True)), settings,
            returns=self._returns, diagnostics=self._diagnostics, diagnose=diagnose, private=private,
        )  # fmt: skip
        tasks = [
            plan.task(
                before, Kind.TRAIN, client, payload,
                private.expected if private else replace(expects, counts={"samples": size, "steps": None}),
                settings=settings, phases=self._phases, means=means or ("clean" if diagnose else None),
                privacy=plan.privacy.told(before.privacy) if plan.privacy else {},
            )
            for client, size in zip(self._asked, samples, strict=True)
        ]  # fmt: skip
        exchange = Exchange(tasks, answers.add, private.check if private else None)
        if tasks:
            yield exchange
            if private is None:
                _expect_answers(exchange, t)
            else:  # a round without answers is noise alone: another cohort in its place would tell of this one
                _expect_finished(exchange)
        collected = answers.settled()
        if private is None:  # bytes and seconds tell how many there were
            self._note(exchange)
        self._accepted = [self._asked[place] for place in exchange.accepted]
        self._everyone = private is not None or not exchange.refused
        if private is not None:
            self._privacy = answers.privacy
            self._up, self._down = private.bytes_up, round(private.clients * payload.bytes)
        if self._returns:
            self._own = method.receive(self._own, collected)
        return answers.sums

    def _private_sum(self, means: MeansMode | None) -> PrivateSum | None:
        if self._plan.privacy is None:
            return None
        params = self._sent.params
        returned = self._method.returns(params.shape[-1], params.dtype)
        return self._plan.privacy.begin(self._before.privacy, self._t, self._sent, returned, means is not None)

    def _shared(self, weights: Weights) -> Weights:
        return weights if self._plan.shared is None else self._plan.shared.take(weights)

    def _merged(self, sums: TrainingSums) -> State:
        """The next state: merge, postprocessing, server step, the method's last word, averaged weights."""
        plan, before, t = self._plan, self._before, self._t
        accepted = list(before.accepted)
        for client in self._accepted:
            accepted[client] = t
        state = replace(
            before, round=t + 1, method=self._own, accepted=tuple(accepted), bytes_up=0, bytes_down=0,
            privacy=self._privacy,
        )  # fmt: skip
        if not sums.returned:  # nobody was asked, or for its own model alone
            return state
        start = self._shared(self._sent)
        merged = postprocess.receive(plan.postprocessors, start.params, sums.params(self._everyone), t)
        params, step = plan.server_step.step(start.params, merged, before.server_step, self._method.step_numbers())
        params = self._thawed(params, start.params)
        model = Weights(params, *sums.statistics(self._everyone))
        if plan.shared is not None:
            model = plan.shared.put(model, before.weights)
        model = replace(model, params=self._method.finish(model.params, self._own))
        state = replace(state, weights=model, server_step=step)
        if plan.average_weights and not self._plan.alone:
            state = replace(state, averaged=_averaged(plan.average_weights, before.averaged, model))
        return state

    def _thawed(self, params: Tensor, start: Tensor) -> Tensor:
        """What no phase trains stays to the bit, whatever momentum the server has."""
        returning = [phase for phase in self._phases if phase.returns]
        trains, frozen = {phase.trains for phase in returning}, min(phase.frozen for phase in returning)
        parted = len(trains) == 1 and trains != {"all"}
        if not (parted or frozen):
            return params
        shared, classifier = self._plan.shared, self._plan.classifier
        places = torch.arange(len(params)) if shared is None else shared.params
        inside = (places >= classifier.start) & (places < classifier.stop)
        trained = places >= frozen
        if parted:
            trained &= inside if trains == {"classifier"} else ~inside
        return torch.where(trained.to(params.device), params, start)

    def _record(self, sums: TrainingSums, settings: Record, state: State) -> Record:
        record: Record = {"round": self._t + 1}
        if self._plan.privacy is not None:
            return {**record, **self._private_record(sums, settings, state)}
        if sums.clients:
            losses = sums.losses(self._everyone)
            record["train_loss"] = losses[0]
            names = self._method.term_names()
            record |= {f"train_{name}": value for name, value in zip(names, losses[1:], strict=True)}
        record |= {
            "lr": settings["lr"],
            "alpha": settings.get("alpha", 0.0),
            "clients": sums.clients,
            "samples": sums.samples,
            **self._traffic(),
        }
        if self._plan.evaluates_at != "server":  # real sites, of whom some may have been away
            record["took_part"] = self._accepted
        if sums.returned and not self._plan.alone:
            record["update_norm"] = float(length(state.weights.params - self._before.weights.params))
            record["client_drift"] = sums.drift()
        return record

    def _private_record(self, sums: TrainingSums, settings: Record, state: State) -> Record:
        """What follows from the noisy sum and from what everybody may know: clients and bytes are the expected ones,
        and nothing is said of losses, samples, drift, or who was asked.
        """
        plan = self._plan
        assert plan.privacy is not None
        return {
            "lr": settings["lr"],
            "alpha": settings.get("alpha", 0.0),
            "clients": round(plan.sample * len(plan.clients)),
            "samples": 0,
            "bytes_up": self._up,
            "bytes_down": self._down,
            "update_norm": float(length(state.weights.params - self._before.weights.params)),
            **plan.privacy.record(self._before.privacy, self._t),
        }

    def _traffic(self) -> Record:
        """What crossed in this round so far, and which answers were refused."""
        crossing = self._method.federated
        found: Record = {"bytes_up": self._up if crossing else 0, "bytes_down": self._down if crossing else 0}
        return {**found, "refused": self._refused} if self._refused else found

    def _expected_training(self, means: MeansMode | None, diagnose: bool) -> Expected:
        method, weights = self._method, self._sent
        shared = self._shared(weights)
        tensors: dict[str, Any] = {"losses": ((1 + len(method.term_names()),), torch.float64)}
        if self._returns:
            tensors |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in shared.tensors().items()}
            tensors |= method.returns(weights.params.shape[-1], weights.params.dtype)
        if means is not None or diagnose:
            tensors |= _means_shapes(self._plan, weights)
        only_observe = MEANS if diagnose and means is None else frozenset()
        return Expected(tensors, {}, only_observe, frozenset({"losses"}))


def _means_shapes(plan: Plan, weights: Weights) -> Shapes:
    classes, features = plan.method.classes, plan.method.features
    return {
        "class_means": ((classes, features), weights.params.dtype),
        "class_counts": ((classes,), torch.int64),
    }


def _averaged(d: float, before: Weights | None, now: Weights) -> Weights:
    """a <- d a + (1 - d) w, started at the first averaged model; float buffers likewise."""
    if before is None:
        return now
    params, buffers = (d * a + (1 - d) * w for a, w in ((before.params, now.params), (before.buffers, now.buffers)))
    return Weights(params, buffers, now.counters)


def _expect_answers(exchange: Exchange, t: int) -> None:
    """A round in which nobody answers well is the end."""
    _expect_finished(exchange)
    if not exchange.accepted:
        first = exchange.tasks[0]
        others = f" and {len(exchange.tasks) - 1} others" if len(exchange.tasks) > 1 else ""
        raise Diverged(t + 1, f"no usable answer; client {first.client}{others}: {exchange.refused[0]}")


def _expect_finished(exchange: Exchange) -> None:
    if not exchange.answered:
        raise ValueError("the exchange was not finished: expected a reply to every task")


def _without_infinities(record: Record) -> Record:
    """JSON has neither infinity nor NaN: such a number is on record as null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }
