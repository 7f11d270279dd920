"""Merges: one vector of parameters out of the clients' (the server step then decides what to do with it)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproc.protocol.server_half import Merge, RunningMerge
from fedproc.protocol.sums import WeightedSum


def effective_steps(steps: Tensor, momentum: float) -> Tensor:
    """a_i (...,): how far `steps` steps of SGD with momentum go along a constant gradient, in learning rates."""
    counted = steps.to(torch.float64)
    if momentum == 0:
        return counted
    return (counted - momentum * (1 - momentum**counted) / (1 - momentum)) / (1 - momentum)


class Mean:
    """FedAvg's sum of p_i w_i."""

    def begin(self, start: Tensor, momentum: float) -> RunningMerge:
        return _RunningMean(start)


class _RunningMean:
    def __init__(self, start: Tensor) -> None:
        self._sum = WeightedSum(start)

    def add(self, params: Tensor, share: float, steps: int) -> None:
        self._sum.add(params, share)

    def result(self, whole: float) -> Tensor:
        return self._sum.result(whole)


class Normalised:
    """FedNova's w^t - (sum of p_i a_i) times the sum of p_i (w^t - w_i)/a_i."""

    def begin(self, start: Tensor, momentum: float) -> RunningMerge:
        return _RunningNormalised(start, momentum)


class _RunningNormalised:
    def __init__(self, start: Tensor, momentum: float) -> None:
        self._origin, self._momentum, self._dtype = start.to(torch.float64), momentum, start.dtype
        self._move = torch.zeros_like(self._origin)
        self._length = 0.0

    def add(self, params: Tensor, share: float, steps: int) -> None:
        length = float(effective_steps(torch.tensor(steps), self._momentum))
        self._move.add_(self._origin - params.to(torch.float64), alpha=share / length)
        self._length += share * length

    def result(self, whole: float) -> Tensor:
        return (self._origin - self._length / whole**2 * self._move).to(self._dtype)


NEEDS_SGD = {"normalised": "it divides each client's move by how far as many steps of SGD go"}
MERGES: dict[str, Merge] = {"mean": Mean(), "normalised": Normalised()}
