"""What the round loop asks a client for, and what it is given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from fedproc.protocol.guard import Expected
from fedproc.protocol.payload import Payload

SERVER = -1  # the number of the server itself, which evaluates the global model

Trains = Literal["all", "classifier", "features", "nothing"]
MeansMode = Literal["clean", "training"]


class Kind(StrEnum):
    DESCRIBE = "describe"  # how many samples there are
    TRAIN = "train"
    CLASS_MEANS = "class means"
    CLASS_COUNTS = "class counts"  # of each class, how many samples there are
    EVALUATE = "evaluate"


@dataclass(frozen=True)
class Phase:
    """A part of a client's round: how many epochs, which part of the network is trained (the rest is frozen; where that
    is the features, they are in evaluation mode), and whether the weights it ends with are the client's answer.
    `second`: it trains another model than the client's part of the global one. Where nothing is trained, gradients are
    added up: the optimizer's velocity ends as their sum over the steps. `frozen`: so many parameters, from the first
    on, stay as they are, whatever is trained.
    """

    epochs: int
    name: str = "train"
    trains: Trains = "all"
    returns: bool = True
    second: bool = False
    frozen: int = 0


@dataclass(frozen=True)
class Task:
    """One piece of client work: for which run, who, in which round (from 0), from which payload, with which numbers.

    `last_accepted` is the round of the client's last accepted training (-1: none), by which a client on another machine
    knows whether the state it set aside counts. `means`: class means are taken, clean (evaluation mode, every sample)
    or training (batch statistics, augmented, whole batches); `covariances` are wanted with them. `on_test`: an
    evaluation on the test images of a run that otherwise evaluates on validation images. `own`: an evaluation of the
    model that the client has of its own beside the global one. `privacy` are the numbers by which a client of a private
    run clips its answer and adds its noise.
    """

    kind: Kind
    client: int
    round: int
    payload: Payload
    expects: Expected
    settings: Mapping[str, float] = field(default_factory=dict)
    phases: tuple[Phase, ...] = ()
    means: MeansMode | None = None
    covariances: bool = False
    run: str = ""
    name: str = ""
    last_accepted: int = -1
    on_test: bool = False
    own: bool = False
    privacy: Mapping[str, float] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """Of all phases together."""
        return sum(phase.epochs for phase in self.phases)

    @property
    def returns(self) -> bool:
        """Whether weights come back; a round may train clients' own models alone."""
        return any(phase.returns for phase in self.phases)

    def answers(self, phase: Phase) -> bool:
        """Whether the answer is made after this phase: the one that returns weights, or else the last."""
        return phase.returns or (not self.returns and phase is self.phases[-1])


@dataclass(frozen=True)
class Reply:
    """What a client answers: its payload, or why there is none; and the seconds it took, by kind of work."""

    payload: Payload | None
    refused: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
