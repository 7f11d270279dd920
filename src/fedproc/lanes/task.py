"""What a round loop asks for, and what it is given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fedproc.methods.fedavg import Trains
from fedproc.payload import Expected, Payload

SERVER = -1  # the asker itself: evaluation of the global model


class Kind(StrEnum):
    TRAIN = "train"
    PROTOTYPES = "prototypes"
    EVALUATE = "evaluate"


@dataclass(frozen=True)
class Task:
    """One piece of client work: who, in which round (from 0), from which payload, with which numbers."""

    kind: Kind
    client: int
    round: int
    payload: Payload
    expects: Expected
    settings: Mapping[str, float] = field(default_factory=dict)
    epochs: int = 0
    trains: Trains = "all"
    clean: bool = True  # of a pass for prototypes: in evaluation mode over every sample as it is


@dataclass(frozen=True)
class Answer:
    """A checked answer: its payload, or why it was refused; and the seconds it took, by kind of work."""

    task: Task
    payload: Payload | None
    refused: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
