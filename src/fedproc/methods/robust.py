"""Robust merges: of what clients send, something that a few hostile ones among them cannot turn (docs/merging.md).

Every client counts once: how many samples it has is what it says of itself. A rule is asked for each tensor by itself,
with the rows of all clients; of class means, for each class, with the rows of those that hold it.
Shapes: n clients, P coordinates.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedproc.errors import InputError
from fedproc.methods.method import Options
from fedproc.protocol.sums import length

CHUNK = 1 << 16  # coordinates that are looked at together, of all clients in float64
SMALLEST = 1e-6  # of the median distance: the least that the geometric median divides by, and a step that is none


class Robust(ABC):
    """A rule with its options."""

    name: ClassVar[str]
    summary: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options

    def __init__(self, options: Options) -> None:
        self.options = options

    def expect(self, clients: int) -> None:
        """Refuse options that so many clients per round are too few for."""
        return

    def agreed(self, name: str, rows: Sequence[Tensor], start: Tensor | None) -> Tensor:
        """One tensor out of the clients'; `start` is what they set out from, None: zero."""
        shape, dtype = rows[0].shape, rows[0].dtype
        flat = [row.reshape(-1) for row in rows]
        origin = torch.zeros_like(flat[0]) if start is None else start.reshape(-1).to(flat[0])
        return self._merged(name, flat, origin).to(dtype).view(shape)

    @abstractmethod
    def _merged(self, name: str, rows: Sequence[Tensor], origin: Tensor) -> Tensor:
        """The same of vectors (P,)."""


class Coordinatewise(Robust):
    """Rules that look at one coordinate at a time."""

    def _merged(self, name: str, rows: Sequence[Tensor], origin: Tensor) -> Tensor:
        found = torch.empty_like(rows[0])
        for at in _chunks(len(found)):
            found[at] = self._of_sorted(_sorted(torch.stack([row[at] for row in rows])))
        return found

    @abstractmethod
    def _of_sorted(self, values: Tensor) -> Tensor:
        """One value (C,) of the clients' (n, C), smallest first."""


class Median(Coordinatewise):
    name = "median"
    summary = "the median of each coordinate"

    def _of_sorted(self, values: Tensor) -> Tensor:
        return _inner_mean(values, (len(values) - 1) // 2)


class Trimmed(Options):
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="share of the clients that is left out at each end, of every coordinate"
    )


class TrimmedMean(Coordinatewise):
    name = "trimmed-mean"
    summary = "the mean of each coordinate without the largest and the smallest values"
    options_type = Trimmed
    options: Trimmed

    def _of_sorted(self, values: Tensor) -> Tensor:
        """So many at each end that the share is reached, but one value at least is left."""
        wanted = math.ceil(self.options.trim * len(values) - 1e-9)
        return _inner_mean(values, min(wanted, (len(values) - 1) // 2))


class Suspecting(Options):
    hostile: int | None = Field(
        None, ge=0, description="f, how many clients of a round may be hostile (default: as many as it allows for)"
    )


class Krum(Robust):
    name = "krum"
    summary = "the one client that is nearest to its n - f - 2 nearest"
    options_type = Suspecting
    options: Suspecting

    def expect(self, clients: int) -> None:
        least = 2 * (self.options.hostile or 0) + 3
        if clients < least:
            given = f"{self.name}.hostile {self.options.hostile}" if self.options.hostile else f"merge {self.name}"
            most = f"; of {clients}, {(clients - 3) // 2} may be hostile" if clients >= 3 else ""
            raise InputError(
                f"--{given}: needs 2f + 3 = {least} clients per round at least, and there are {clients}{most}"
            )

    def _merged(self, name: str, rows: Sequence[Tensor], origin: Tensor) -> Tensor:
        if len(rows) < 3:  # nobody has a majority
            return _mean(rows)
        most = (len(rows) - 3) // 2  # where few hold a class, or answered
        hostile = most if self.options.hostile is None else min(self.options.hostile, most)
        nearest = _squared_distances(rows, origin).sort(dim=1).values[:, : len(rows) - hostile - 2]
        order = nearest.sum(dim=1).sort(stable=True).indices.tolist()
        return self._of_nearest([rows[place] for place in order], len(rows) - hostile)

    def _of_nearest(self, rows: Sequence[Tensor], honest: int) -> Tensor:
        """The vector out of all, the one with the nearest neighbours first; `honest` of them may be trusted."""
        return rows[0]


class MultiKrum(Krum):
    name = "multi-krum"
    summary = "the mean of the n - f clients that are nearest to their nearest"

    def _merged(self, name: str, rows: Sequence[Tensor], origin: Tensor) -> Tensor:
        if 3 <= len(rows) < 5 and self.options.hostile != 0:  # of so few it leaves nobody out
            return Median(Options())._merged(name, rows, origin)
        return super()._merged(name, rows, origin)

    def _of_nearest(self, rows: Sequence[Tensor], honest: int) -> Tensor:
        return _mean(rows[:honest])


class Clipped(Options):
    bound: float | None = Field(
        None, gt=0, description="how far a client's weights may move in a round (default: the median of all moves)"
    )


class NormClip(Robust):
    """Weights are clipped to the bound; other tensors to the median of their lengths, as weights without one."""

    name = "norm-clip"
    summary = "the mean of moves, of which long ones are shortened to a bound"
    options_type = Clipped
    options: Clipped

    def _merged(self, name: str, rows: Sequence[Tensor], origin: Tensor) -> Tensor:
        start = origin.double()
        lengths = [float(length(row.double() - start)) for row in rows]
        given = self.options.bound if name == "params" else None
        bound = _median(lengths) if given is None else given
        whole = torch.zeros_like(start)
        for row, far in zip(rows, lengths, strict=True):
            whole.add_(row.double() - start, alpha=(min(1.0, bound / far) if far else 1.0) / len(rows))
        return start + whole


class Iterated(Options):
    iterations: int = Field(20, ge=1, description="the most steps of Weiszfeld's iteration")


class GeometricMedian(Robust):
    """Weiszfeld's iteration from the median of each coordinate on, until a step is shorter than a millionth; where it
    is at a client's vector, with Vardi and Zhang's step away from it.
    """

    name = "geometric-median"
    summary = "the vector with the smallest sum of distances to the clients'"
    options_type = Iterated
    options: Iterated

    def _merged(self, name: str, rows: Sequence[Tensor], origin: Tensor) -> Tensor:
        now = Median(Options())._merged(name, rows, origin).double()
        for _ in range(self.options.iterations):
            distances = [float(length(row.double() - now)) for row in rows]
            least = SMALLEST * _median(distances)
            if least == 0:  # most of them are here
                break
            weights = [1 / far if far > least else 0.0 for far in distances]
            step = torch.zeros_like(now)  # to the weighted mean of those that are elsewhere
            for row, weight in zip(rows, weights, strict=True):
                if weight:
                    step.add_(row.double() - now, alpha=weight / sum(weights))
            held, pulled = weights.count(0.0), sum(weights) * float(length(step))
            step *= 1 - min(1.0, held / pulled) if held and pulled else float(not held)
            now = now + step
            if float(length(step)) <= least:
                break
        return now


def _chunks(size: int) -> Iterator[slice]:
    return (slice(at, at + CHUNK) for at in range(0, size, CHUNK))


def _sorted(values: Tensor) -> Tensor:
    """(n, C), the smallest of each coordinate first; on a CPU by NumPy, which is seven times as fast."""
    return values.sort(dim=0).values if values.is_cuda else torch.from_numpy(np.sort(values.numpy(), axis=0))


def _inner_mean(values: Tensor, without: int) -> Tensor:
    """The mean (C,) of sorted values (n, C) without so many at each end; never outside of those that are left."""
    inner = values[without : len(values) - without]
    mean = (inner.double() / len(inner)).sum(dim=0).to(values.dtype)
    return torch.minimum(torch.maximum(mean, inner[0]), inner[-1])


def _mean(rows: Sequence[Tensor]) -> Tensor:
    whole = torch.zeros_like(rows[0], dtype=torch.float64)
    for row in rows:
        whole.add_(row.double(), alpha=1 / len(rows))
    return whole


def _median(numbers: Sequence[float]) -> float:
    ordered = sorted(numbers)
    return ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2


def _squared_distances(rows: Sequence[Tensor], origin: Tensor) -> Tensor:
    """(n, n) in float64, infinite to oneself and where numbers are too large to say."""
    products = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=origin.device)
    for at in _chunks(len(origin)):
        moves = torch.stack([row[at] for row in rows]).double() - origin[at].double()
        products += moves @ moves.T
    squares = products.diagonal()
    found = (squares.unsqueeze(0) + squares.unsqueeze(1) - 2 * products).clamp(min=0)
    return found.nan_to_num(nan=torch.inf, posinf=torch.inf).fill_diagonal_(torch.inf)


ROBUST: dict[str, type[Robust]] = {
    kind.name: kind for kind in (Median, TrimmedMean, Krum, MultiKrum, NormClip, GeometricMedian)
}
