"""Class weights in the cross-entropy of any method, for data of which some classes have few images.

Classes count by 1/n_k, and a batch's loss is the mean by these weights, as torch's cross-entropy with weights has it: a
client whose images are all of one class trains as without. n_k are the images of all clients together (`balanced`),
so that classes weigh as they would with all data at one place; or the client's own (`own`).
Shapes: ... clients side by side, B batch, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fedproc.methods.method import Answer, Batch, Local, Method, Options, Pass, Tensors, Term, Terms

Weighting = Literal["none", "balanced", "own"]

CROSS_ENTROPY = "cross_entropy"  # the term whose classes are weighted
PASS = Pass("class counts", "everyone", counts_only=True)


class OwnWeights(Method):
    """In front of a method: its cross-entropy is weighted by the client's own counts."""

    def _totals(self, local: Local) -> Tensor:
        """n_k (..., K)."""
        return local.class_counts

    def loss(self, batch: Batch, local: Local) -> Terms:
        above = super().loss(batch, local)
        found = above[CROSS_ENTROPY]
        term = found if isinstance(found, Term) else Term(found)
        weights = (1 / self._totals(local).clamp(min=1)).gather(-1, batch.labels)

        def weighted() -> Tensor | tuple[Tensor, Tensor]:
            given = term.values() if callable(term.values) else term.values
            values, counted = given if isinstance(given, tuple) else (given, term.counted)
            if values.shape != batch.labels.shape:
                raise ValueError(f"{CROSS_ENTROPY} has one value for each client: class weights need each sample's")
            scaled = values * relative(weights, batch.mask, counted)
            return scaled if counted is None else (scaled, counted)

        return {**above, CROSS_ENTROPY: replace(term, values=weighted)}


class BalancedWeights(OwnWeights):
    """Weighted by all clients' counts. A client knows better of what was not told: a class that is rarer at some client
    than --smallest-class counts as told by the others, but not for less than it has itself.
    """

    @classmethod
    def needs_mean(cls, options: Options) -> str | None:
        above = super().needs_mean(options)
        return above or "--class-weights balanced adds up the counts that clients tell; take own"

    def opening(self) -> Sequence[Pass]:
        return (*super().opening(), PASS)

    def first_state(self, params: int) -> Tensors:
        none = torch.zeros(self.client.classes, dtype=torch.int64)
        return {**super().first_state(params), "class_totals": none}

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors:
        above = super().collect_pass(state, which, sums, answer)
        if which != PASS:
            return above
        counts = answer.tensors["class_counts"]
        return {**above, "class_totals": above["class_totals"] + counts if "class_totals" in above else counts}

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors:
        above = super().receive_pass(state, which, sums)
        return {**above, "class_totals": sums["class_totals"]} if which == PASS else above

    def send(self, state: Tensors) -> Tensors:
        return {**super().send(state), "class_totals": state["class_totals"].to(self.client.dtype)}

    def _totals(self, local: Local) -> Tensor:
        return torch.maximum(local.sent["class_totals"], local.class_counts)


@lru_cache(maxsize=64)
def with_class_weights(method: type[Method], how: Weighting) -> type[Method]:
    """The method with class weights; a bound without federation has nobody's counts but its clients' own."""
    if how == "none":
        return method
    kind = BalancedWeights if how == "balanced" and method.federated else OwnWeights
    return type(method.__name__, (kind, method), {"options_type": method.options_type, "__module__": method.__module__})


def relative(weights: Tensor, mask: Tensor | None, counted: Tensor | None) -> Tensor:
    """Weights (..., B) over their mean among real and counted samples, so that the mean of values times these is the
    mean by weights.
    """
    included = torch.ones_like(weights, dtype=torch.bool)
    for part in (mask, counted):
        included = included if part is None else included & part
    total = torch.where(included, weights, torch.zeros_like(weights)).sum(dim=-1, keepdim=True)
    samples = included.sum(dim=-1, keepdim=True)
    return weights * samples / torch.where(samples > 0, total, torch.ones_like(total))
