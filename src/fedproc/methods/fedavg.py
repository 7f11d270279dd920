"""FedAvg (McMahan et al. 2017), and the base every other method overrides where it differs.

A method is two halves in one file. The server's: what it keeps, what it sends besides the weights, how it
takes answers in. The client's: what it minimises, how it corrects the gradient, what it returns and keeps.
Losses act on trailing axes and parameters are flat (..., P), so a method never says how many clients run
side by side. Shapes: B batch, K classes, Q features, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from fedproc import kernels
from fedproc.networks.flat import Weights
from fedproc.payload import Payload

PrototypePass = Literal["clean", "training"]
Trains = Literal["all", "classifier"]
Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class Options(BaseModel):
    """A method's hyper-parameters: typed, documented fields; each becomes --<method>.<option>."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Problem:
    """What a method knows of the experiment: T rounds of E epochs, K classes, Q features, the clients' sizes,
    the momentum of their SGD, gamma of the calibration of logits and of similarities, the server step's numbers.
    """

    rounds: int
    classes: int
    features: int
    model_seed: int
    dtype: torch.dtype = torch.float32
    epochs: int = 1
    client_sizes: tuple[int, ...] = ()
    momentum: float = 0.0
    calibrate: float = 0.0
    calibrate_prototypes: float = 0.0
    server_beta: float = 0.9
    server_lr: float = 1.0


@dataclass(frozen=True)
class Batch:
    """What a loss sees of one step: z (..., B, Q), logits (..., B, K), labels (..., B), mask (..., B) or None.

    `embed(weights)` is z of the same images under other weights, frozen and in evaluation mode.
    """

    z: Tensor
    logits: Tensor
    labels: Tensor
    mask: Tensor | None
    embed: Callable[[Weights], Tensor]

    def mean(self, values: Tensor, counted: Tensor | None = None) -> Tensor:
        """The mean (...,) of values (..., B) over real samples, and of those over the counted; 0 of none."""
        if kernels.usable(values):
            from fedproc.kernels import losses

            return losses.mean(values, self.mask, counted)
        if self.mask is None and counted is None:
            return values.mean(dim=-1)
        keep = torch.ones_like(values, dtype=torch.bool) if counted is None else counted
        if self.mask is not None:
            keep = keep & self.mask
        return torch.where(keep, values, torch.zeros_like(values)).sum(dim=-1) / keep.sum(dim=-1).clamp(min=1)

    def weighted(self, values: Tensor, weight: Tensor, counted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean times a weight (...,), and the mean itself, through which no gradient flows."""
        if kernels.usable(values):
            from fedproc.kernels import losses

            return losses.weighted_mean(values, self.mask, counted, weight)
        mean = self.mean(values, counted)
        return weight * mean, mean.detach()


@dataclass(frozen=True)
class Local:
    """A client while it trains: where the round started, its weights now (..., P), what it was sent, the round's
    numbers (...,), what it kept from its last round, its steps (...,) and the logs of its class shares (..., K).
    """

    start: Weights
    weights: Weights
    velocity: Tensor
    sent: Tensors
    settings: Tensors
    kept: Tensors
    steps: Tensor
    log_shares: Tensor


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy (...) of each sample's logits (..., K)."""
    if kernels.usable(logits):
        from fedproc.kernels import losses

        return losses.cross_entropies(logits, labels)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)


class FedAvg:
    """Cross-entropy at the clients; the server takes the mean of their weights, weighted by samples."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "weighted mean of the clients' weights (McMahan et al. 2017)"
    options_type: ClassVar[type[Options]] = Options
    terms: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    merge: ClassVar[str] = "mean"
    server_step: ClassVar[str] = "replace"
    one_place: ClassVar[bool] = False  # all data at one client
    own_models: ClassVar[bool] = False  # every client trains a model of its own that nobody merges
    keeps_momentum: ClassVar[bool] = False  # momentum goes on over the rounds, in what the client keeps

    def __init__(self, options: Options, problem: Problem) -> None:
        self.options = options
        self.problem = problem

    # the server's half

    @property
    def rounds(self) -> int:
        return self.problem.rounds

    def epochs(self, t: int) -> int:
        """Local epochs of round t."""
        return self.problem.epochs

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

    def trains(self, t: int) -> Trains:
        """Which part of the network round t trains; the rest stays frozen and in evaluation mode."""
        return "all"

    def begin(self, params: int) -> Tensors:
        """What the server keeps before anyone has answered; `params` is P."""
        return {}

    def settings(self, t: int) -> dict[str, float]:
        """Numbers of round t (from 0) that a client's loss needs."""
        return {}

    def send(self, kept: Tensors) -> Tensors:
        """What goes to a client besides the weights."""
        return {}

    def shares(self, samples: Sequence[int]) -> list[float]:
        """p_i of the clients that answered."""
        return [count / sum(samples) for count in samples]

    def step_numbers(self) -> tuple[float, float]:
        """Momentum and learning rate of the server step, for those that have them."""
        return self.problem.server_beta, self.problem.server_lr

    def receive(self, kept: Tensors, answers: Sequence[Payload]) -> Tensors:
        """What the server keeps after the round's accepted answers."""
        return kept

    def finish(self, params: Tensor, kept: Tensors) -> Tensor:
        """The next round's parameters, from what merge and server step made of them and what the server keeps now."""
        return params

    # the client's half

    def loss(self, batch: Batch, local: Local) -> tuple[Tensor, Sequence[Tensor]]:
        """What each lane minimises (...,), and the `terms` it is made of, each (...,)."""
        cross_entropy = self.cross_entropy(batch, local)
        return cross_entropy, (cross_entropy,)

    def cross_entropy(self, batch: Batch, local: Local) -> Tensor:
        """The mean cross-entropy (...,)."""
        return batch.mean(self.cross_entropies(batch, local))

    def cross_entropies(self, batch: Batch, local: Local) -> Tensor:
        """Of each sample (..., B), of logits calibrated by the client's own class shares if asked for."""
        logits = batch.logits
        if self.problem.calibrate:
            logits = logits + self.problem.calibrate * local.log_shares.unsqueeze(-2)
        return cross_entropies(logits, batch.labels)

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        """The gradient (..., P) that the optimizer sees, before weight decay and momentum."""
        return gradient

    def returned(self, params: int, dtype: torch.dtype) -> Shapes:
        """Names, shapes and dtypes of what `answer` gives; P is `params`."""
        return {}

    def answer(self, local: Local) -> Tensors:
        """What a client returns besides its weights."""
        return {}

    def keep_first(self, client: int, start: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        """What a client holds in place of what it kept before its first round: start is what it was sent,
        fresh(n) makes the n-th other set of initial weights.
        """
        return {"velocity": torch.zeros_like(start.params)} if self.keeps_momentum else {}

    def keep(self, local: Local) -> Tensors:
        """What a client keeps for its next round, should its answer be accepted."""
        return {"velocity": local.velocity} if self.keeps_momentum else {}
