"""FedProc (Mu et al. 2021): prototypical contrastive federated learning, Algorithm 1.

The server averages each class's mean embedding beside the weights. A client minimises
alpha_t * prototype loss + (1 - alpha_t) * cross-entropy, alpha_t falling from 1 to 0 over the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedproc import prototypes, streams
from fedproc.kernels.forks import side_by_side
from fedproc.methods import fedavg
from fedproc.methods.fedavg import Batch, FedAvg, Local, PrototypePass, Tensors
from fedproc.payload import Payload


class PrototypeOptions(fedavg.Options):
    """What every method that trains towards prototypes can choose."""

    tau: float = Field(1.0, gt=0, description="temperature: cosines are divided by it")
    start: Literal["data", "zeros", "random"] = Field(
        "data", description="c0: a pass over all clients' data, zeros (no class known), or random unit vectors"
    )
    weighting: prototypes.Weighting = Field(
        "uniform", description="averaging of prototypes over the clients that hold the class, or by their counts"
    )
    pass_mode: PrototypePass = Field(
        "clean",
        description="the pass that computes prototypes: clean (eval mode, every sample) or training "
        "(batch statistics, augmented, shuffled, last partial batch dropped)",
    )


class Options(PrototypeOptions):
    """The paper's choices by default; the preset `author_code` follows the authors' release."""

    alpha: float | None = Field(
        None, ge=0, le=1, description="a constant weight of the prototype loss instead of a schedule"
    )
    schedule: Literal["linear", "cosine"] = Field("linear", description="how alpha falls from 1 to the floor")
    horizon: int | None = Field(
        None, ge=1, description="rounds over which alpha falls, the floor from then on (default: all rounds)"
    )
    floor: float = Field(0.0, ge=0, le=1, description="what alpha falls to")
    combine: Literal["trade", "add"] = Field(
        "trade", description="trade: (1 - alpha) * cross-entropy + alpha * prototype loss; add: cross-entropy at 1"
    )
    first_round: Literal["prototype", "cross-entropy"] = Field(
        "prototype", description="the first round's loss; cross-entropy sets alpha to 0 there"
    )

    @model_validator(mode="after")
    def _constant_has_no_schedule(self) -> Options:
        if self.alpha is not None and self.floor:
            raise ValueError(f"alpha {self.alpha} is constant and takes no floor ({self.floor})")
        return self


class Prototypical(FedAvg):
    """The server's care of prototypes and the clients' two losses; `alpha` says how they are mixed."""

    terms: ClassVar[tuple[str, ...]] = ("cross_entropy", "prototype_loss")
    options: PrototypeOptions

    def alpha(self, t: int) -> float:
        """The weight of the prototype loss in round t = 0, 1, ..."""
        raise TypeError(f"{type(self).__name__} must say what alpha is")

    def cross_entropy_weight(self, alpha: Tensor) -> Tensor:
        return 1 - alpha

    # the server's half

    @property
    def prototype_pass(self) -> PrototypePass:
        return self.options.pass_mode

    @property
    def starts_with_prototypes(self) -> bool:
        return self.options.start == "data"

    def begin(self, params: int) -> Tensors:
        problem = self.problem
        shape = (problem.classes, problem.features)
        if self.options.start == "random":
            at = streams.key(problem.model_seed, streams.Purpose.PROTOTYPES)
            drawn = prototypes.unit(streams.normals(at, math.prod(shape)).view(shape)).to(problem.dtype)
            return {"prototypes": drawn, "known": torch.ones(problem.classes, dtype=torch.bool)}
        return {
            "prototypes": torch.zeros(shape, dtype=problem.dtype),
            "known": torch.zeros(problem.classes, dtype=torch.bool),
        }

    def settings(self, t: int) -> dict[str, float]:
        return {"alpha": self.alpha(t)}

    def send(self, kept: Tensors) -> Tensors:
        return {"prototypes": kept["prototypes"], "known": kept["known"]}

    def receive(self, kept: Tensors, answers: Sequence[Payload]) -> Tensors:
        """A class that no client of the round holds keeps its old prototype."""
        means = [answer.tensors["class_means"] for answer in answers]
        counts = [answer.tensors["class_counts"] for answer in answers]
        merged, held = prototypes.merge(means, counts, self.options.weighting)
        return {
            **kept,
            "prototypes": torch.where(held.unsqueeze(-1), merged, kept["prototypes"].to(merged.device)),
            "known": kept["known"].to(held.device) | held,
        }

    # the client's half

    def loss(self, batch: Batch, local: Local) -> tuple[Tensor, Sequence[Tensor]]:
        known, alpha, gamma = local.sent["known"], local.settings["alpha"], self.problem.calibrate_prototypes
        offset = gamma * local.log_shares if gamma else None

        def pull() -> tuple[Tensor, Tensor]:
            sent, tau = local.sent["prototypes"], self.options.tau
            samples, counted = prototypes.contrast(batch.z, batch.labels, sent, tau, known, offset)
            return batch.weighted(samples, alpha, counted)

        def classify() -> tuple[Tensor, Tensor]:
            return batch.weighted(self.cross_entropies(batch, local), self.cross_entropy_weight(alpha))

        (pulled, prototype_loss), (classified, cross_entropy) = side_by_side(pull, classify)
        return classified + pulled, (cross_entropy, prototype_loss)


class FedProc(Prototypical):
    """Pull samples to their class's global prototype first, train the classifier more and more."""

    name: ClassVar[str] = "fedproc"
    summary: ClassVar[str] = "prototype loss traded for cross-entropy over the rounds (Mu et al. 2021)"
    options_type: ClassVar[type[fedavg.Options]] = Options
    options: Options

    def depends_on_rounds(self) -> str | None:
        if self.options.alpha is None and self.options.horizon is None:
            return f"alpha falls to {self.options.floor:g} over all rounds"
        return None

    def alpha(self, t: int) -> float:
        options = self.options
        if t == 0 and options.first_round == "cross-entropy":
            return 0.0
        if options.alpha is not None:
            return options.alpha
        done = min(t / (options.horizon or self.problem.rounds), 1.0)
        fallen = done if options.schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
        return 1 - (1 - options.floor) * fallen

    def cross_entropy_weight(self, alpha: Tensor) -> Tensor:
        return 1 - alpha if self.options.combine == "trade" else torch.ones_like(alpha)
