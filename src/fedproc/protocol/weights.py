"""A model as three flat vectors, which is how methods, lanes and payloads see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

NAMES = ("params", "buffers", "counters")


@dataclass(frozen=True)
class Weights:
    """params (..., P) are trained, buffers (..., F) are other float values (running statistics, frozen parameters),
    counters (..., C) are integers.
    """

    params: Tensor
    buffers: Tensor
    counters: Tensor

    def tensors(self) -> dict[str, Tensor]:
        return {"params": self.params, "buffers": self.buffers, "counters": self.counters}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Weights:
        return cls(tensors["params"], tensors["buffers"], tensors["counters"])

    def clone(self) -> Weights:
        return Weights(self.params.clone(), self.buffers.clone(), self.counters.clone())


@dataclass(frozen=True)
class Shared:
    """Where the values lie that all clients share, in each of the three vectors; the others are each client's own."""

    params: Tensor
    buffers: Tensor
    counters: Tensor

    def take(self, weights: Weights) -> Weights:
        """The shared values alone."""
        return Weights(
            *(flat.index_select(-1, at.to(flat.device)) for flat, at in zip(_flat(weights), _flat(self), strict=True))
        )

    def put(self, shared: Weights, into: Weights) -> Weights:
        """A copy of `into` with these shared values."""
        made = []
        for flat, values, at in zip(_flat(into), _flat(shared), _flat(self), strict=True):
            made.append(flat.clone().index_copy_(-1, at.to(flat.device), values))
        return Weights(*made)

    @property
    def nothing(self) -> bool:
        """Whether every value is a client's own."""
        return not any(len(at) for at in _flat(self))


def _flat(of: Weights | Shared) -> tuple[Tensor, Tensor, Tensor]:
    return of.params, of.buffers, of.counters
