"""What a round's model is worth: evaluated by the server or by clients on what they held out, and beside it averaged
weights, final models and clients' own; the best so far is kept, and meets the test images once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from fedproc.errors import MethodError
from fedproc.protocol.diagnostics import Diagnostics
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.measure import Candidate, measure, measure_at_clients, measure_clients, measure_own_models
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.plan import Kept, Plan, Record, State
from fedproc.protocol.task import Kind, Phase


class Assessment:
    """Of one round, after its training. `own` is the method's state, `phases` are what clients did."""

    def __init__(
        self, plan: Plan, t: int, own: Tensors, diagnostics: Diagnostics, phases: Sequence[Phase]
    ) -> None:  # fmt: skip
        self._plan, self._t, self._own, self._diagnostics, self._phases = plan, t, own, diagnostics, phases
        self._method = plan.method
        self._returns = any(phase.returns for phase in phases)

    def evaluate(self, state: State, last: bool) -> Generator[Exchange, None, tuple[Record, float, Tensors]]:
        """What was measured, the seconds, and the diagnostics' new state."""
        plan, method = self._plan, self._method
        own = method.prototypes(self._own)
        regular = plan.evaluates_regularly(self._t)
        observed = own is None and self._returns
        diagnostics = self._diagnostics.settled(regular) if observed else state.diagnostics
        shown = own or Diagnostics.shown(diagnostics, method.classes, method.features, state.weights.params)
        if plan.shared is not None:
            if last and method.final_models(state.weights, self._own):
                reason = "clients have models of their own here, beside which no others are evaluated"
                raise MethodError(method.name, "final_models", reason)
            trained = [client for client, accepted in enumerate(state.accepted) if accepted >= 0]
            where = trained if plan.alone else state.there
            if not where:
                return {}, 0.0, diagnostics
            tasks = [
                plan.task(
                    state, Kind.EVALUATE, client,
                    Payload({**state.weights.tensors(), **self._diagnostics.of(client, shown)}),
                    expects=None,
                )
                for client in where
            ]  # fmt: skip
            if plan.evaluates_at == "server":
                measured, seconds = yield from measure_clients(plan, tasks, self._diagnostics.counts())
            else:
                alone = [Candidate("", state.weights, *shown)]
                measured, seconds = yield from measure_at_clients(plan, alone, [tasks])
            return measured, seconds, diagnostics
        candidates = [Candidate("", state.weights, *shown)]
        if state.averaged is not None:
            candidates.append(Candidate("averaged", state.averaged, *shown))
        if last:
            finals = method.final_models(state.weights, self._own)
            candidates += [Candidate(name, weights, *shown) for name, weights in finals.items()]
        measured, seconds = yield from self._measured(plan, state, candidates)
        if method.has_own and any(phase.second for phase in self._phases):
            found, spent = yield from self._own_models(state)
            sites = {**measured.get("sites", {}), **found.pop("sites", {})}  # a site's model is its own
            measured, seconds = {**measured, **found, **({"sites": sites} if sites else {})}, seconds + spent
        return measured, seconds, diagnostics

    def _own_models(self, state: State) -> Generator[Exchange, None, tuple[Record, float]]:
        """The models that clients have of their own beside the global one."""
        plan, method = self._plan, self._method
        none = Diagnostics.shown({}, method.classes, method.features, state.weights.params)
        tasks = [
            plan.task(
                state, Kind.EVALUATE, client,
                Payload({**state.weights.tensors(), **dict(zip(("prototypes", "known"), none, strict=True))}),
                expects=None, own=True,
            )
            for client in state.there
        ]  # fmt: skip
        return (yield from measure_own_models(plan, tasks, self._diagnostics.counts()))

    def _measured(
        self, plan: Plan, state: State, candidates: Sequence[Candidate], on_test: bool = False
    ) -> Generator[Exchange, None, tuple[Record, float]]:
        """Models on what the clients held out, on what the server did, or both."""
        measured: Record = {}
        seconds = 0.0
        if plan.evaluates_at != "server":
            there = state.there
            asked = [
                [plan.task(state, Kind.EVALUATE, client, payload, None, on_test=on_test) for client in there]
                for payload in (one.payload for one in candidates)
            ]
            measured, seconds = yield from measure_at_clients(plan, candidates, asked)
        if plan.evaluates_at != "clients":
            found, spent = yield from measure(plan, candidates, self._t, on_test)
            measured, seconds = {**measured, **found}, seconds + spent
        return measured, seconds

    def kept(self, state: State, diagnostics: Tensors, record: Record) -> Kept | None:
        """The best model so far: this round's, if its validation accuracy is above all before."""
        plan, before = self._plan, state.kept
        accuracy = record.get("val_accuracy")
        if (plan.keep == "last" and plan.patience is None) or accuracy is None:
            return before
        if before is not None and accuracy <= before.accuracy:
            return before
        own = self._method.prototypes(self._own)
        method = self._method
        shown = own or Diagnostics.shown(diagnostics, method.classes, method.features, state.weights.params)
        return Kept(state.weights, *shown, round=state.round, accuracy=accuracy)

    def test(self, state: State, kept: Kept) -> Generator[Exchange, None, tuple[Record, float]]:
        """The kept model meets the test images, once."""
        plan = replace(self._plan, held_out="test")
        candidates = [Candidate("", kept.weights, kept.prototypes, kept.known)]
        measured, seconds = yield from self._measured(plan, state, candidates, on_test=True)
        return {"round": kept.round, "val_accuracy": kept.accuracy, **measured}, seconds
