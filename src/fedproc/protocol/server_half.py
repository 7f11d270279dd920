"""What the round loop asks the server's half of a method (methods/method.py says what each is for)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedproc.protocol.guard import Expected, Shapes
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.task import MeansMode, Phase, Task
from fedproc.protocol.weights import Weights


@dataclass(frozen=True)
class Pass:
    """Class means (and covariances) that clients are asked for apart from training, under the server's model; or how
    many samples of each class they have, alone.
    """

    name: str
    of: Literal["participants", "everyone"] = "participants"
    mode: MeansMode = "clean"
    covariances: bool = False
    counts_only: bool = False


@dataclass(frozen=True)
class Answer:
    """An accepted answer as a method sees it: who, with how many samples, steps and what share, what came back, of the
    model that the client had been sent what it hands back, and the numbers of the round. In a private run one answer is
    the mean of all, and stands for so many `clients`.
    """

    client: int
    samples: int
    steps: int
    share: float
    tensors: Tensors
    sent: Tensors = field(default_factory=dict)
    settings: Mapping[str, float] = field(default_factory=dict)
    clients: float = 1.0


class ServerHalf(Protocol):
    """A method at the server. `state` is what it keeps between rounds, its own alone."""

    @property
    def name(self) -> str: ...

    @property
    def rounds(self) -> int: ...

    @property
    def own_rounds(self) -> int: ...

    @property
    def aligns(self) -> bool: ...

    @property
    def has_own(self) -> bool: ...

    @property
    def federated(self) -> bool: ...

    @property
    def classes(self) -> int: ...

    @property
    def features(self) -> int: ...

    @property
    def momentum(self) -> float: ...

    def knowing(self, client_sizes: Sequence[int]) -> ServerHalf: ...

    def depends_on_rounds(self) -> str | None: ...

    def term_names(self) -> tuple[str, ...]: ...

    def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]: ...

    def opening(self) -> Sequence[Pass]: ...

    def passes(self, t: int) -> Sequence[Pass]: ...

    def closing(self) -> Sequence[Pass]: ...

    def phases(self, t: int) -> tuple[Phase, ...]: ...

    def class_means(self, t: int) -> MeansMode | None: ...

    def first_state(self, params: int) -> Tensors: ...

    def settings(self, t: int) -> Mapping[str, float]: ...

    def send(self, state: Tensors) -> Tensors: ...

    def returns(self, params: int, dtype: torch.dtype) -> Shapes: ...

    def averages(self) -> Sequence[str]: ...

    def shares(self, samples: Sequence[int]) -> Sequence[float]: ...

    def step_numbers(self) -> Mapping[str, float]: ...

    def align(self, answers: Sequence[Answer]) -> Sequence[Answer]: ...

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors: ...

    def receive(self, state: Tensors, sums: Tensors) -> Tensors: ...

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors: ...

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors: ...

    def finish(self, params: Tensor, state: Tensors) -> Tensor: ...

    def prototypes(self, state: Tensors) -> tuple[Tensor, Tensor] | None: ...

    def final_models(self, weights: Weights, state: Tensors) -> Mapping[str, Weights]: ...


class RunningMerge(Protocol):
    """Clients' parameters becoming one vector, one client at a time."""

    def add(self, params: Tensor, share: float, steps: int) -> None: ...

    def result(self, whole: float) -> Tensor:
        """The merged vector; `whole` is the sum of the shares that were added (1 where everybody answered)."""


class Merge(Protocol):
    """How clients' parameters become one vector."""

    def begin(self, start: Tensor, momentum: float) -> RunningMerge: ...


class ServerStep(Protocol):
    """How the server moves from the round's start to the merged vector; its state is its own."""

    def first_state(self, params: Tensor) -> Tensors: ...

    def step(
        self, start: Tensor, merged: Tensor, state: Tensors, numbers: Mapping[str, float]
    ) -> tuple[Tensor, Tensors]: ...


class PrivateSum(Protocol):
    """The answers of a private round, of which nothing is seen but their noisy sum (privacy/server.py)."""

    @property
    def expected(self) -> Expected: ...

    @property
    def clients(self) -> float: ...

    @property
    def bytes_up(self) -> int: ...

    def check(self, task: Task, payload: Payload) -> None: ...

    def add(self, payload: Payload) -> None: ...

    def result(self) -> tuple[Payload, Tensors]:
        """One answer that stands for all, and the state after the round."""


class Private(Protocol):
    """The server's half of differential privacy."""

    @property
    def secure(self) -> bool: ...

    def depends_on_rounds(self) -> str | None: ...

    def words(self) -> list[str]: ...

    def cohort(self, there: Sequence[int], t: int) -> list[int]: ...

    def first_state(self, classes: int, features: int) -> Tensors: ...

    def told(self, state: Tensors) -> Mapping[str, float]: ...

    def begin(self, state: Tensors, t: int, start: Weights, returned: Shapes, means: bool) -> PrivateSum: ...

    def record(self, state: Tensors, t: int) -> dict[str, Any]: ...

    def summary(self, rounds: int) -> dict[str, Any]: ...
