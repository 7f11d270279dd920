"""Matched averaging, fixed width: FedMA (Wang et al. 2020) without new units. Clients' units are matched layer by layer
before they are averaged; a layer that is matched is frozen, and those above it are trained again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc import streams
from fedproc.errors import InputError
from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.matching import Layer, assignment, chain, matched
from fedproc.methods.method import Answer, ClientProblem, Local, Pass, Phase, ServerProblem, Tensors, Weights

SIMPLE_CNN = ("encoder.0", "encoder.1", "encoder.3", "encoder.4", "head.0", "head.1", "classifier")
TYPES = ("ConvReluPool", "Linear")
ABOVE = "above-"  # the phase that trains the layers above so many


class Options(method.Options):
    retrain: int | None = Field(
        None, ge=0, description="epochs of the layers above one that was matched (default: --epochs); 0: all are "
        "matched after each round, and none is trained again",
    )  # fmt: skip
    sweeps: int = Field(5, ge=0, description="how often each client is matched once more to all others")


class FedMA(FedAvg):
    """Of 7 rounds the first trains the whole network; after it and each of the others one more of the 6 layers below
    the classifier is final, and the next trains those above it, from the client's own. The averaged model of a round
    has all layers matched. Weights count alike, the classifier's row of a class by the clients' samples of it.
    """

    name: ClassVar[str] = "fedma"
    summary: ClassVar[str] = "matched averaging, fixed width (after Wang et al. 2020)"
    family: ClassVar[str] = "averaging"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def __init__(self, options: method.Options, client: ClientProblem, server: ServerProblem | None = None) -> None:
        super().__init__(options, client, server)
        names = [f"{name}.{part}" for name in SIMPLE_CNN for part in ("weight", "bias")]
        found = [tensor.name for tensor in client.tensors]
        if found != names or any(tensor.layer not in TYPES for tensor in client.tensors):
            raise InputError(
                "--method fedma: it can match the units of --network simple-cnn alone, and this is another"
            )

    @property
    def _layers(self) -> list[Layer]:
        return chain(self.client.tensors)

    # the server's half

    def _stage(self, t: int) -> int:
        """How many layers are final before round t."""
        return 0 if self.options.retrain == 0 else t % len(SIMPLE_CNN)

    def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]:
        """The same clients until all layers are final."""
        there = [client for client, size in enumerate(self.server.client_sizes) if size]
        first = t - self._stage(t)
        if first == t or len(sampled) == len(there):
            return super().participants(t, sampled)
        order = streams.order(streams.key(self.server.model_seed, streams.Purpose.COHORT, first), len(there))
        return sorted(there[place] for place in order[: len(sampled)].tolist())

    def phases(self, t: int) -> tuple[Phase, ...]:
        stage = self._stage(t)
        if not stage:
            return super().phases(t)
        epochs = self.options.retrain or self.server.epochs
        return (Phase(epochs, f"{ABOVE}{stage}", frozen=self._layers[stage - 1].stop),)

    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        return [1 / len(samples)] * len(samples)

    def opening(self) -> Sequence[Pass]:
        return (*super().opening(), Pass("held", "everyone", counts_only=True))

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors:
        above = super().collect_pass(state, which, sums, answer)
        if which.name != "held":
            return above
        counts = answer.tensors["class_counts"].to(torch.float64)
        held = above["held"] if "held" in above else counts.new_zeros(len(self.server.client_sizes), len(counts))
        held[answer.client] = counts
        return {**above, "held": held}

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors:
        above = super().receive_pass(state, which, sums)
        return {**above, "held": sums["held"]} if which.name == "held" else above

    @classmethod
    def needs_mean(cls, options: method.Options) -> str | None:
        above = super().needs_mean(options)
        return above or "units are matched by all clients' weights and by the sizes that they tell"

    def align(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """All units in the order of the client with the most samples."""
        above = super().align(answers)
        by_size = sorted(range(len(above)), key=lambda place: -above[place].samples)
        params = [above[place].tensors["params"] for place in by_size]
        inputs: list[Tensor | None] = [None] * len(params)
        parts: list[list[Tensor]] = [[] for _ in params]
        for layer in self._layers[:-1]:
            rows = [layer.rows(p, i) for p, i in zip(params, inputs, strict=True)]
            orders = [] if all(torch.equal(row, rows[0]) for row in rows) else matched(rows, self.options.sweeps)
            units: list[Tensor | None] = [*orders] or [None] * len(params)
            for part, p, u, i in zip(parts, params, units, inputs, strict=True):
                part.append(layer.arranged(p, u, i))
            inputs = units
        for part, p, i in zip(parts, params, inputs, strict=True):
            part.append(self._layers[-1].arranged(p, None, i))
        found = list(above)
        for place, part, z in zip(by_size, parts, inputs, strict=True):
            tensors = {**above[place].tensors, "params": torch.cat(part)}
            if z is not None and "class_means" in tensors:
                tensors["class_means"] = tensors["class_means"][:, z]
            found[place] = replace(above[place], tensors=tensors)
        return found

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        above = super().collect(state, sums, answer)
        rows = self._layers[-1].rows(answer.tensors["params"]).to(torch.float64)
        even = rows.new_full((len(rows),), answer.samples / len(rows))  # of a client that came later
        there = "held" in state and answer.client < len(state["held"])
        held = state["held"][answer.client].to(rows) if there else even
        total = sums["rows"] if "rows" in sums else torch.zeros_like(rows)
        counts = sums["counts"] if "counts" in sums else torch.zeros_like(held)
        return {**above, "rows": total + held.unsqueeze(-1) * rows, "counts": counts + held}

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        above = super().receive(state, sums)
        return {**above, "rows": sums["rows"], "counts": sums["counts"]} if "rows" in sums else above

    def finish(self, params: Tensor, state: Tensors) -> Tensor:
        found, last = super().finish(params, state), self._layers[-1]
        counts = state["counts"].unsqueeze(-1).to(found.device)
        rows = torch.where(counts > 0, state["rows"].to(found.device) / counts.clamp(min=1), last.rows(found))
        rows = rows.to(found)
        return torch.cat([found[: last.start], rows[:, :-1].flatten(), rows[:, -1]])

    # the client's half

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        above = super().first_client_state(client, sent, fresh)
        if self.options.retrain == 0:
            return above
        return {**above, "own": sent.params, "stage": torch.full((1,), -1, device=sent.params.device)}

    def start(self, sent: Weights, state: Tensors, phase: str) -> Weights:
        """What is final, and above it the client's own layers, the first of which sees its inputs in the new order. A
        client that was not there the round before begins with the averaged ones.
        """
        above = super().start(sent, state, phase)
        stage = _final(phase)
        if not stage or int(state["stage"]) != stage - 1:
            return above
        last, following, own = self._layers[stage - 1], self._layers[stage], state["own"]
        inputs = assignment(last.rows(own), last.rows(above.params))
        parts = [above.params[: last.stop], following.arranged(own, None, inputs), own[following.stop :]]
        return replace(above, params=torch.cat(parts))

    def next_client_state(self, local: Local) -> Tensors:
        above = super().next_client_state(local)
        if self.options.retrain == 0:
            return above
        stage = torch.full_like(local.state["stage"], _final(local.phase.name))
        return {**above, "own": local.weights.params, "stage": stage}


def _final(phase: str) -> int:
    """How many layers are final in a phase."""
    return int(phase.removeprefix(ABOVE)) if phase.startswith(ABOVE) else 0
