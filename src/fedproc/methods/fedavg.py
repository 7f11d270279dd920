"""FedAvg (McMahan et al. 2017), and the base every other method overrides where it differs.

A method is two halves in one file. The server's: what it keeps, what it sends besides the weights, how it
takes answers in. The client's: what it minimises, how it corrects the gradient, what it keeps. Losses act
on trailing axes and parameters are flat (..., P), so a method never says how many clients run side by side.
Shapes: B batch, K classes, Q features, P parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fedproc.payload import Payload

PrototypePass = Literal["clean", "training"]
Tensors = Mapping[str, Tensor]


class Options(BaseModel):
    """A method's hyper-parameters: typed, documented fields; each becomes --<method>.<option>."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True)
class Problem:
    """What a method knows of the experiment: T rounds, K classes, Q features, the model seed."""

    rounds: int
    classes: int
    features: int
    model_seed: int
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Batch:
    """What a loss sees of one step: z (..., B, Q), logits (..., B, K), labels (..., B), mask (..., B) or None."""

    z: Tensor
    logits: Tensor
    labels: Tensor
    mask: Tensor | None

    def mean(self, values: Tensor, counted: Tensor | None = None) -> Tensor:
        """The mean (...,) of values (..., B) over real samples, and of those over the counted; 0 of none."""
        if self.mask is None and counted is None:
            return values.mean(dim=-1)
        keep = torch.ones_like(values, dtype=torch.bool) if counted is None else counted
        if self.mask is not None:
            keep = keep & self.mask
        return torch.where(keep, values, torch.zeros_like(values)).sum(dim=-1) / keep.sum(dim=-1).clamp(min=1)

    def cross_entropy(self) -> Tensor:
        """(..., B)."""
        flat = F.cross_entropy(self.logits.flatten(0, -2), self.labels.flatten(), reduction="none")
        return flat.view(self.labels.shape)


@dataclass(frozen=True)
class Local:
    """What a client holds while it trains: the round's start (..., P), what it was sent, its settings (...,)
    and what it kept from its last round.
    """

    start: Tensor
    params: Tensor
    sent: Tensors
    settings: Tensors
    kept: Tensors


class FedAvg:
    """Cross-entropy at the clients; the server takes the mean of their weights, weighted by samples."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "weighted mean of the clients' weights (McMahan et al. 2017)"
    options_type: ClassVar[type[Options]] = Options
    terms: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    merge: ClassVar[str] = "mean"
    server_step: ClassVar[str] = "replace"

    def __init__(self, options: Options, problem: Problem) -> None:
        self.options = options
        self.problem = problem

    # the server's half

    @property
    def prototype_pass(self) -> PrototypePass | None:
        """How clients compute class means after training; None: this method uses none."""
        return None

    @property
    def starts_with_prototypes(self) -> bool:
        """Whether all clients are asked for class means of the initial weights before the first round."""
        return False

    def depends_on_rounds(self) -> str | None:
        """What makes a run of T rounds differ from the first T of a longer one, if anything does."""
        return None

    def begin(self) -> Tensors:
        """What the server keeps before anyone has answered."""
        return {}

    def settings(self, t: int) -> dict[str, float]:
        """Numbers of round t (from 0) that a client's loss needs."""
        return {}

    def send(self, kept: Tensors) -> Tensors:
        """What goes to a client besides the weights."""
        return {}

    def receive(self, kept: Tensors, answers: Sequence[Payload]) -> Tensors:
        """What the server keeps after the round's accepted answers."""
        return kept

    # the client's half

    def loss(self, batch: Batch, local: Local) -> tuple[Tensor, Sequence[Tensor]]:
        """What each lane minimises (...,), and the `terms` it is made of, each (...,)."""
        cross_entropy = batch.mean(batch.cross_entropy())
        return cross_entropy, (cross_entropy,)

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        """The gradient (..., P) that the optimizer sees, before weight decay and momentum."""
        return gradient

    def keep_first(self, start: Tensor) -> Tensors:
        """What a client holds in place of that before its first round; start is (P,)."""
        return {}

    def keep(self, local: Local) -> Tensors:
        """What a client keeps for its next round, should its answer be accepted."""
        return {}
