"""Sums over clients that need no list of them, taken in float64 in the clients' order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedproc.protocol.payload import Payload
from fedproc.protocol.server_half import RunningMerge
from fedproc.protocol.weights import Weights


class WeightedSum:
    """The sum of p_i v_i."""

    def __init__(self, like: Tensor) -> None:
        self._total = torch.zeros_like(like, dtype=torch.float64)
        self._dtype = like.dtype

    def add(self, vector: Tensor, share: float) -> None:
        self._total.add_(vector.to(torch.float64), alpha=share)

    def result(self, whole: float = 1.0) -> Tensor:
        """As a mean over those that were added, whose shares sum to `whole`."""
        total = self._total if whole == 1.0 else self._total / whole
        return total.to(self._dtype)


class TrainingSums:
    """What a round's training answers add up to: merged parameters, running statistics averaged by samples whatever the
    merge, the largest batch counters, losses by samples, and how far clients moved.
    """

    def __init__(self, sent: Weights, merge: RunningMerge | None, batch_size: int) -> None:
        self._sent, self._merge, self._batch_size = sent, merge, batch_size
        self._buffers = WeightedSum(sent.buffers)
        self._counters: Tensor | None = None
        self._losses: list[float] = []
        self._moved: list[Tensor] = []
        self.share = self.sample_share = 0.0
        self.clients = self.samples = 0

    def add(self, payload: Payload, share: float, sample_share: float, own: Payload | None = None) -> None:
        """Take one client's answer; its weights, where some come back, are those that all clients share. `own` is the
        answer as it was before a robust merge.
        """
        steps = payload.counts["steps"]
        if "params" in payload.tensors:
            weights = Weights.of(payload.tensors)
            if self._merge is not None:
                self._merge.add(weights.params, share, steps)
            self._buffers.add(weights.buffers, sample_share)
            counters = weights.counters
            self._counters = counters.clone() if self._counters is None else torch.maximum(self._counters, counters)
            self._moved.append(length((own or payload).tensors["params"] - self._sent.params))
        row = payload.tensors["losses"].tolist()
        before = self._losses or [0.0] * len(row)
        self._losses = [total + sample_share * value for total, value in zip(before, row, strict=True)]
        self.share += share
        self.sample_share += sample_share
        self.clients += 1
        self.samples += steps * min(self._batch_size, payload.counts["samples"])

    def params(self, everyone: bool) -> Tensor:
        """The merged parameters; `everyone` of those asked answered, so shares need no correction."""
        assert self._merge is not None
        return self._merge.result(1.0 if everyone else self.share)

    def statistics(self, everyone: bool) -> tuple[Tensor, Tensor]:
        """Buffers and counters."""
        assert self._counters is not None
        return self._buffers.result(1.0 if everyone else self.sample_share), self._counters

    def losses(self, everyone: bool) -> list[float]:
        """Total loss and terms."""
        return self._losses if everyone else [value / self.sample_share for value in self._losses]

    @property
    def returned(self) -> bool:
        """Whether anybody gave weights back."""
        return bool(self._moved)

    def drift(self) -> float:
        """The mean distance of the clients' parameters from what they were sent."""
        return float(sum(torch.stack(self._moved).tolist())) / len(self._moved)


def length(vector: Tensor) -> Tensor:
    """The Euclidean length as float64, also of a float32 vector whose square overflows."""
    if vector.is_cuda:  # without asking the device whether it overflowed
        whole: Tensor = torch.linalg.vector_norm(vector, dtype=torch.float64)
        return whole
    found: Tensor = torch.linalg.vector_norm(vector)
    return found.double() if torch.isfinite(found) else torch.linalg.vector_norm(vector.double())


def mean_share(samples: Sequence[int]) -> list[float]:
    """p_i: each one's share of all samples."""
    total = sum(samples)
    return [count / total for count in samples]
