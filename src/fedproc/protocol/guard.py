"""The guard: every answer is checked here before anything is made of it, in the simulator and in a federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fedproc.protocol.payload import Payload

LARGEST_COUNT = 1 << 53  # larger ones are not exact in a float64 average

Shapes = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class Refused(ValueError):
    """An answer that must not be used, with the reason."""


@dataclass(frozen=True)
class Expected:
    """What an answer must hold: shape and dtype of every tensor, the names of every count and, where it is known, its
    value. Tensors that only `observe` never decide: what is wrong with them is left out, and the answer counts.
    """

    tensors: Shapes
    counts: Mapping[str, int | None] = field(default_factory=dict)
    observe: frozenset[str] = frozenset()
    may_be_infinite: frozenset[str] = frozenset()


def admit(payload: Payload, expected: Expected) -> Payload:
    """The payload, if it is exactly what was asked for: names, sizes, dtypes, finite values, sane counts."""
    observed = {name: tensor for name, tensor in payload.tensors.items() if name in expected.observe}
    deciding = {name: tensor for name, tensor in payload.tensors.items() if name not in expected.observe}
    _check_names("tensor", set(deciding), set(expected.tensors) - expected.observe)
    _check_names("count", set(payload.counts), set(expected.counts))
    for name, count in payload.counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 < count < LARGEST_COUNT:
            raise Refused(f"{name} is {count!r}, expected a count above 0")
        wanted = expected.counts[name]
        if wanted is not None and count != wanted:
            raise Refused(f"{name} is {count}, expected {wanted}")
    for name in deciding:
        _check_tensor(name, payload, expected)
    for name in list(observed):
        try:
            _check_tensor(name, payload, expected)
        except Refused:
            del observed[name]
    kept = {**deciding, **observed}
    return Payload({name: kept[name] for name in expected.tensors if name in kept}, payload.counts)


def _check_tensor(name: str, payload: Payload, expected: Expected) -> None:
    tensor, (shape, dtype) = payload.tensors[name], expected.tensors.get(name, ((), torch.bool))
    if name not in expected.tensors:
        raise Refused(f"{name} was not asked for")
    if tuple(tensor.shape) != shape:
        raise Refused(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.dtype != dtype:
        raise Refused(f"{name} is {tensor.dtype}, expected {dtype}")
    if dtype.is_floating_point:
        if name not in expected.may_be_infinite and not bool(torch.isfinite(tensor).all()):
            raise Refused(f"{name} is not finite")
    elif name == "counters":
        return  # integer buffers of the network, which may be a person's own
    elif dtype == torch.int64 and tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < LARGEST_COUNT:
        raise Refused(f"{name} holds a count below 0 or too large")


def _check_names(kind: str, got: set[str], wanted: set[str]) -> None:
    if got != wanted:
        missing, extra = sorted(wanted - got), sorted(got - wanted)
        raise Refused(f"{kind} names differ: missing {missing}, not asked for {extra}")
