"""What the round loop needs of an experiment, and the state it goes from round to round with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from fedproc import streams
from fedproc.protocol.agreement import Rule
from fedproc.protocol.guard import Expected
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.postprocess import Postprocessor
from fedproc.protocol.server_half import Merge, Private, ServerHalf, ServerStep
from fedproc.protocol.task import Kind, Task
from fedproc.protocol.weights import Shared, Weights

Record = dict[str, Any]
# who has held-out images: the server, or each client its own, or both; where the server has some, they decide
EvaluatesAt = Literal["server", "clients", "both"]
Keep = Literal["last", "best"]


@dataclass(frozen=True)
class Plan:
    """What the loop needs of the experiment. `clients` are names; a client's number is its place among them."""

    method: ServerHalf
    rounds: int
    clients: Sequence[str]
    merge: Merge
    server_step: ServerStep
    sample: float
    lr: float
    eval_every: int
    model_seed: int
    batch_size: int
    held_out: str = "test"  # or "val": what models are evaluated on
    lr_schedule: str = "constant"
    lr_floor: float = 0.0
    average_weights: float = 0.0  # d of a <- d a + (1 - d) w; 0: no average
    send_averaged: bool = False
    classifier: slice = field(default_factory=lambda: slice(0, 0))  # where the classifier's parameters lie
    shared: Shared | None = None  # what clients share of a model; None: all of it
    postprocessors: Sequence[Postprocessor] = ()
    rule: Rule | None = None  # of a robust merge, which everything that clients send goes through first
    run: str = ""  # tells tasks of different runs apart
    evaluates_at: EvaluatesAt = "server"
    real_sites: bool = False  # the held-out images that the server evaluates on say which client each comes from
    keep: Keep = "last"  # whose model is the run's: the last round's, or the one with the best validation accuracy
    patience: int | None = None  # rounds without a better validation accuracy after which the run ends
    own_rounds: int = 0  # of the rounds, the last that train clients' own models alone
    privacy: Private | None = None  # clients' answers are clipped, and their sum has noise on it

    @property
    def alone(self) -> bool:
        """Whether clients share nothing of a model."""
        return self.shared is not None and self.shared.nothing

    def task(
        self, state: State, kind: Kind, client: int, payload: Payload, expects: Expected | None, **more: Any
    ) -> Task:  # fmt: skip
        """A task with what a client on another machine needs to know."""
        done = state.round if kind is not Kind.EVALUATE else state.round - 1
        return Task(
            kind, client, done, payload, expects or Expected({}), run=self.run, name=self.clients[client],
            last_accepted=state.accepted[client], **more,
        )  # fmt: skip

    def depends_on_rounds(self) -> str | None:
        """What makes a run of T rounds differ from the first T of a longer one, if anything does."""
        if self.keep == "best":
            return "its model was chosen by validation and has met the test images"
        if self.patience is not None:
            return "it ends when validation shows nothing better"
        if self.lr_schedule != "constant":
            return "the learning rate falls over all rounds"
        if self.privacy is not None and (reason := self.privacy.depends_on_rounds()) is not None:
            return reason
        return self.method.depends_on_rounds()

    def lr_at(self, t: int) -> float:
        """The learning rate of round t."""
        federated = self.rounds - self.own_rounds
        if self.lr_schedule == "constant" or t >= federated:
            return self.lr
        done = t / federated
        fallen = done if self.lr_schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
        return self.lr - (self.lr - self.lr_floor) * fallen

    def evaluates(self, t: int) -> bool:
        return self.evaluates_regularly(t) or t + 1 == self.rounds

    def over(self, state: State) -> bool:
        """Whether the last round is done, or none was better for too long."""
        if state.round >= self.rounds:
            return True
        if self.patience is None or state.kept is None or not self.evaluates_regularly(state.round - 1):
            return False
        return state.round - state.kept.round >= self.patience

    def evaluates_regularly(self, t: int) -> bool:
        """Whether round t is evaluated even when it is not the last."""
        return (t + 1) % self.eval_every == 0


@dataclass(frozen=True)
class Kept:
    """The model with the best validation accuracy so far, its prototypes, and the number of its round, from 1."""

    weights: Weights
    prototypes: Tensor
    known: Tensor
    round: int
    accuracy: float


@dataclass(frozen=True)
class State:
    """Everything between two rounds: rounds done, the model, and what each owner keeps: the method, the server step,
    the averaged weights, the diagnostics, the choice of the best model, privacy. `sizes` are the clients' samples,
    learnt before the first round (0: a client that did not say); `accepted` is the round of each one's last accepted
    training; bytes are those not yet on record.
    """

    round: int
    weights: Weights
    started: bool = False
    method: Tensors = field(default_factory=dict)
    server_step: Tensors = field(default_factory=dict)
    averaged: Weights | None = None
    diagnostics: Tensors = field(default_factory=dict)
    kept: Kept | None = None
    privacy: Tensors = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def there(self) -> list[int]:
        """The clients that have told of samples."""
        return [client for client, size in enumerate(self.sizes) if size]


@dataclass(frozen=True)
class Progress:
    """A state to continue from, and the record of the round that led to it (None: the start alone)."""

    state: State
    record: Record | None


def first_state(plan: Plan, weights: Weights) -> State:
    """The state before anything happened."""
    device = weights.params.device

    def placed(tensors: Tensors) -> Tensors:
        return {name: tensor.to(device) for name, tensor in tensors.items()}

    method = placed(plan.method.first_state(weights.params.shape[-1]))
    shared = weights if plan.shared is None else plan.shared.take(weights)
    step = placed(plan.server_step.first_state(shared.params))
    bounds = {} if plan.privacy is None else plan.privacy.first_state(plan.method.classes, plan.method.features)
    return State(0, weights, method=method, server_step=step, privacy=bounds)


def cohort(plan: Plan, sizes: Sequence[int], t: int) -> list[int]:
    """The sampled clients of round t, in order: without replacement, by a stream of its own, of those that are left. In
    a private run each by itself, and possibly none.
    """
    there = [client for client, size in enumerate(sizes) if size]
    if plan.privacy is not None:
        return plan.privacy.cohort(there, t)
    taken = max(1, round(plan.sample * len(there)))
    if taken >= len(there):
        return there
    order = streams.order(streams.key(plan.model_seed, streams.Purpose.COHORT, t), len(there))
    return sorted(there[place] for place in order[:taken].tolist())
