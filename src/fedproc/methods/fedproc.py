"""FedProc (Mu et al. 2021): prototypical contrastive federated learning, Algorithm 1.

The server averages each class's mean embedding beside the weights. A client minimises
alpha_t * prototype loss + (1 - alpha_t) * cross-entropy, alpha_t falling from 1 to 0 over the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedproc import prototypes, streams
from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Answer, Batch, Local, MeansMode, Pass, Tensors, Term, Terms


class MeansOptions(method.Options):
    """What every method whose server averages class means can choose."""

    start: Literal["data", "zeros", "random"] = Field(
        "data",
        description="c0: a pass over all clients' data, zeros (no class known), or random unit vectors (follows "
        "--privacy: data, in a private run zeros)",
    )
    weighting: prototypes.Weighting = Field(
        "uniform", description="averaging of prototypes over the clients that hold the class, or by their counts"
    )
    of: Literal["clients", "averaged"] = Field(
        "clients",
        description="whose class means are averaged: those under each client's model after training, or those under "
        "the averaged model, asked for before each round's training",
    )
    pass_mode: MeansMode = Field(
        "clean",
        description="the pass that computes prototypes: clean (eval mode, every sample) or training "
        "(batch statistics, augmented, shuffled, last partial batch dropped)",
    )


class PrototypeOptions(MeansOptions):
    """What every method that trains towards prototypes by their cosines can choose."""

    tau: float = Field(1.0, gt=0, description="temperature: cosines are divided by it")


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


PASSES = ("c0", "averaged")  # whose answers become prototypes


class AveragesMeans(FedAvg):
    """The server's care of prototypes, which are the clients' averaged class means."""

    family: ClassVar[str] = "prototypes"
    additive: ClassVar[bool] = True
    private_options: ClassVar[Mapping[str, Any]] = {"start": "zeros"}
    options: MeansOptions

    @classmethod
    def needs_mean(cls, options: method.Options) -> str | None:
        above = super().needs_mean(options)
        if getattr(options, "weighting", "uniform") == "uniform":
            return above
        return above or f"prototypes are weighted by the counts that clients tell; take --{cls.name}.weighting uniform"

    @classmethod
    def unprotected(cls, options: method.Options) -> str | None:
        assert isinstance(options, MeansOptions)
        if options.start == "data":
            return f"--{cls.name}.start data asks all clients for their class means; take zeros or random"
        if options.of == "averaged":
            return f"--{cls.name}.of averaged asks clients for class means apart from training; take clients"
        if options.weighting == "count":
            return f"--{cls.name}.weighting count goes by the clients' counts, which stay hidden; take uniform"
        return super().unprotected(options)

    def opening(self) -> Sequence[Pass]:
        """c0: class means of the initial weights over all clients' data."""
        above = super().opening()
        return (*above, Pass("c0", "everyone", self.options.pass_mode)) if self.options.start == "data" else above

    def passes(self, t: int) -> Sequence[Pass]:
        above = super().passes(t)
        averaged = self.options.of == "averaged" and (t > 0 or self.options.start != "data")
        return (*above, Pass("averaged", "participants", self.options.pass_mode)) if averaged else above

    def class_means(self, t: int) -> MeansMode | None:
        return self.options.pass_mode if self.options.of == "clients" else super().class_means(t)

    def first_state(self, params: int) -> Tensors:
        classes, dtype = self.client.classes, self.client.dtype
        shape = (classes, self.client.features)
        drawn, known = torch.zeros(shape, dtype=dtype), torch.zeros(classes, dtype=torch.bool)
        if self.options.start == "random":
            at = streams.key(self.server.model_seed, streams.Purpose.PROTOTYPES)
            drawn = prototypes.unit(streams.normals(at, math.prod(shape)).view(shape)).to(dtype)
            known = torch.ones_like(known)
        return {**super().first_state(params), "prototypes": drawn, "known": known}

    def send(self, state: Tensors) -> Tensors:
        return {**super().send(state), "prototypes": state["prototypes"], "known": state["known"]}

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        above = super().collect(state, sums, answer)
        return self._added(above, answer) if self.options.of == "clients" else above

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        return self._merged(super().receive(state, sums), sums)

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors:
        above = super().collect_pass(state, which, sums, answer)
        return self._added(above, answer) if which.name in PASSES else above

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors:
        above = super().receive_pass(state, which, sums)
        return self._merged(above, sums) if which.name in PASSES else above

    def _added(self, sums: Tensors, answer: Answer) -> Tensors:
        before = (sums["prototype_sum"], sums["prototype_weight"]) if "prototype_sum" in sums else None
        means, counts = answer.tensors["class_means"], answer.tensors["class_counts"]
        total, weight = prototypes.add_means(before, means, counts, self.options.weighting)
        return {**sums, "prototype_sum": total, "prototype_weight": weight}

    def _merged(self, state: Tensors, sums: Tensors) -> Tensors:
        """A class that no client of the round holds keeps its old prototype."""
        if "prototype_sum" not in sums:
            return state
        before = state["prototypes"]
        merged, held = prototypes.from_sums((sums["prototype_sum"], sums["prototype_weight"]), before.dtype)
        return {
            **state,
            "prototypes": torch.where(held.unsqueeze(-1), merged, before.to(merged.device)),
            "known": state["known"].to(held.device) | held,
        }

    def prototypes(self, state: Tensors) -> tuple[Tensor, Tensor] | None:
        return state["prototypes"], state["known"]


class Prototypical(AveragesMeans):
    """The clients' two losses; `alpha` says how they are mixed."""

    options: PrototypeOptions

    def alpha(self, t: int) -> float:
        """The weight of the prototype loss in round t = 0, 1, ..."""
        raise TypeError(f"{type(self).__name__} must say what alpha is")

    def cross_entropy_weight(self, alpha: Tensor) -> Tensor:
        return 1 - alpha

    def settings(self, t: int) -> Mapping[str, float]:
        return {**super().settings(t), "alpha": self.alpha(t)}

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "prototype_loss")

    def loss(self, batch: Batch, local: Local) -> Terms:
        above = dict(super().loss(batch, local))
        known, alpha, gamma = local.sent["known"], local.settings["alpha"], self.client.calibrate_prototypes
        offset = gamma * local.log_shares if gamma else None

        pull = prototypes.Contrast(batch.z, batch.labels, local.sent["prototypes"], self.options.tau, known, offset)
        cross_entropy = above["cross_entropy"]
        whole = cross_entropy if isinstance(cross_entropy, Term) else Term(cross_entropy)
        weight = self.cross_entropy_weight(alpha)
        weight = weight if whole.weight is None else weight * whole.weight
        above["cross_entropy"] = Term(whole.values, weight, whole.counted)
        return {**above, "prototype_loss": Term(pull, alpha)}


class FedProc(Prototypical):
    """Pull samples to their class's global prototype first, train the classifier more and more."""

    name: ClassVar[str] = "fedproc"
    summary: ClassVar[str] = "prototype loss traded for cross-entropy over the rounds (Mu et al. 2021)"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def depends_on_rounds(self) -> str | None:
        if self.options.alpha is None and self.options.horizon is None:
            return f"alpha falls to {self.options.floor:g} over all rounds"
        return super().depends_on_rounds()

    def alpha(self, t: int) -> float:
        options = self.options
        if t == 0 and options.first_round == "cross-entropy":
            return 0.0
        if options.alpha is not None:
            return options.alpha
        done = min(t / (options.horizon or self.server.rounds), 1.0)
        fallen = done if options.schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
        return 1 - (1 - options.floor) * fallen

    def cross_entropy_weight(self, alpha: Tensor) -> Tensor:
        return 1 - alpha if self.options.combine == "trade" else torch.ones_like(alpha)
