"""The one thing that crosses between a client and the server: named tensors and counts.

The simulator hands it over in memory, a federation sends it over the wire; the same guard checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

MOST = 1 << 53  # counts above this are not exact in a float64 average


class Refused(ValueError):
    """An answer that must not be used, with the reason."""


@dataclass(frozen=True)
class Payload:
    """Named tensors and named counts."""

    tensors: Mapping[str, Tensor]
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """What it weighs on the wire, names and framing aside."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values()) + 8 * len(self.counts)


@dataclass(frozen=True)
class Expected:
    """What an answer must hold: shape and dtype of every tensor, the names of every count."""

    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    counts: frozenset[str] = frozenset()


def check(payload: Payload, expected: Expected) -> None:
    """Refuse a payload that is not exactly what was asked for: names, sizes, dtypes, finite, sane counts."""
    _check_names("tensor", set(payload.tensors), set(expected.tensors))
    _check_names("count", set(payload.counts), set(expected.counts))
    for name, (shape, dtype) in expected.tensors.items():
        tensor = payload.tensors[name]
        if tuple(tensor.shape) != shape:
            raise Refused(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
        if tensor.dtype != dtype:
            raise Refused(f"{name} is {tensor.dtype}, expected {dtype}")
        if dtype.is_floating_point:
            if not bool(torch.isfinite(tensor).all()):
                raise Refused(f"{name} is not finite")
        elif name == "counters":
            continue  # integer buffers of the network, which may be a person's own
        elif dtype == torch.int64 and tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < MOST:
            raise Refused(f"{name} holds a count below 0 or too large")
    for name, count in payload.counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 < count < MOST:
            raise Refused(f"{name} is {count!r}, expected a count above 0")


def _check_names(kind: str, got: set[str], wanted: set[str]) -> None:
    if got != wanted:
        missing, extra = sorted(wanted - got), sorted(got - wanted)
        raise Refused(f"{kind} names differ: missing {missing}, not asked for {extra}")
