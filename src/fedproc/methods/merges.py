"""Merges: one vector of parameters out of the clients' (the server step then decides what to do with it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc.networks.flat import Weights


@dataclass(frozen=True)
class Trained:
    """A client's weights after its round, with its share p_i of the round's samples and its steps."""

    weights: Weights
    share: float
    steps: int


Merge = Callable[[Tensor, Sequence[Trained]], Tensor]


def weighted_sum(vectors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The sum of p_i v_i, added up in float64 in the clients' order."""
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector, share in zip(vectors, shares, strict=True):
        total.add_(vector.to(torch.float64), alpha=share)
    return total.to(vectors[0].dtype)


def mean(start: Tensor, clients: Sequence[Trained]) -> Tensor:
    """FedAvg's sum of p_i w_i."""
    return weighted_sum([c.weights.params for c in clients], [c.share for c in clients])


def merge_statistics(clients: Sequence[Trained]) -> tuple[Tensor, Tensor]:
    """Running statistics averaged by p_i and the largest batch counters, whatever merge the parameters take."""
    buffers = weighted_sum([c.weights.buffers for c in clients], [c.share for c in clients])
    counters = torch.stack([c.weights.counters for c in clients]).amax(dim=0)
    return buffers, counters


MERGES: dict[str, Merge] = {"mean": mean}
