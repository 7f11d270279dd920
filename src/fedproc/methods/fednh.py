"""FedNH (Dai et al. 2023): class prototypes are the classifier; they begin uniform and move slowly by the clients'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method, prototype_classifier
from fedproc.methods.method import Answer, MeansMode, Tensors
from fedproc.methods.prototype_classifier import PrototypeClassifier, orthonormal
from fedproc.prototypes import add_means, from_sums, unit


class Options(prototype_classifier.Options):
    smoothing: float = Field(0.9, ge=0, le=1, description="r, how much of a prototype stays in a round")
    uniform: bool = Field(False, description="the original's mean of weights, 1/|S| each, instead of by samples")


class FedNH(PrototypeClassifier):
    """Minimises the cross-entropy of s cos(z, c_k), c fixed in a round. After training a client returns its class means
    of z, which has length 1; the server scales each to length 1, takes their mean by counts, and moves to it:
    c_k <- u(r c_k + (1 - r) u(mean)). A class that nobody in the round has stays.
    """

    name: ClassVar[str] = "fednh"
    summary: ClassVar[str] = "prototypes as the classifier, moved slowly over the rounds (Dai et al. 2023)"
    options_type: ClassVar[type[method.Options]] = Options
    additive: ClassVar[bool] = True
    options: Options

    def _first(self) -> Tensor:
        return orthonormal(self.client.classes, self.client.features, self.server.model_seed)

    def class_means(self, t: int) -> MeansMode | None:
        return "clean"

    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        return [1 / len(samples)] * len(samples) if self.options.uniform else super().shares(samples)

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        before = (sums["mean_sum"], sums["mean_weight"]) if "mean_sum" in sums else None
        means, counts = unit(answer.tensors["class_means"]), answer.tensors["class_counts"]
        total, weight = add_means(before, means, counts, "count")
        return {**super().collect(state, sums, answer), "mean_sum": total, "mean_weight": weight}

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        above = super().receive(state, sums)
        if "mean_sum" not in sums:
            return above
        found, held = from_sums((sums["mean_sum"], sums["mean_weight"]), torch.float64)
        before, r = state["prototypes"].to(found), self.options.smoothing
        moved = torch.where(held.unsqueeze(-1), unit(r * before + (1 - r) * unit(found)), before)
        return {**above, "prototypes": moved.to(state["prototypes"].dtype)}
