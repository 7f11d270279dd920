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


Merge = Callable[[Tensor, Sequence[Trained], float], Tensor]


def weighted_sum(vectors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    """The sum of p_i v_i, added up in float64 in the clients' order."""
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector, share in zip(vectors, shares, strict=True):
        total.add_(vector.to(torch.float64), alpha=share)
    return total.to(vectors[0].dtype)


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """a_i (...,): how far `steps` steps of SGD with momentum go along a constant gradient, in learning rates."""
    counted = steps.to(torch.float64)
    if momentum == 0:
        return counted
    return (counted - momentum * (1 - momentum**counted) / (1 - momentum)) / (1 - momentum)


def mean(start: Tensor, clients: Sequence[Trained], momentum: float) -> Tensor:
    """FedAvg's sum of p_i w_i."""
    return weighted_sum([c.weights.params for c in clients], [c.share for c in clients])


def normalised(start: Tensor, clients: Sequence[Trained], momentum: float) -> Tensor:
    """FedNova's w^t - (sum of p_i a_i) times the sum of p_i (w^t - w_i)/a_i."""
    lengths = [float(effective_steps(torch.tensor(c.steps), momentum)) for c in clients]
    origin = start.to(torch.float64)
    move = torch.zeros_like(origin)
    for client, length in zip(clients, lengths, strict=True):
        move.add_(origin - client.weights.params.to(torch.float64), alpha=client.share / length)
    whole = sum(c.share * length for c, length in zip(clients, lengths, strict=True))
    return (origin - whole * move).to(start.dtype)


def merge_statistics(clients: Sequence[Trained]) -> tuple[Tensor, Tensor]:
    """Running statistics averaged by p_i and the largest batch counters, whatever merge the parameters take."""
    buffers = weighted_sum([c.weights.buffers for c in clients], [c.share for c in clients])
    counters = torch.stack([c.weights.counters for c in clients]).amax(dim=0)
    return buffers, counters


MERGES: dict[str, Merge] = {"mean": mean, "normalised": normalised}
