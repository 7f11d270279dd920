"""The server's half: Poisson cohorts, noise on the sum, the expected cohort as divisor, adaptive bounds, epsilon.

What comes of a round is one answer, as if a single client had trained and stood for the whole cohort: methods, merges
and server steps see nothing else. Shapes: D the clipped vector, K classes, Q features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedproc.privacy.client import UNCLIPPED, UPDATE
from fedproc.privacy.promise import Promise
from fedproc.privacy.randomness import Randomness
from fedproc.privacy.vector import Sums, Vector, clipped, expect_short
from fedproc.protocol.guard import Expected, Refused, Shapes
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.sums import WeightedSum
from fedproc.protocol.task import Task
from fedproc.protocol.weights import Weights
from fedproc.streams import Purpose

SURE = 2.0  # deviations of its noise that the count of a class must be above to be believed


class PrivateServer:
    """What the round loop asks for where a run is private. `secure`: its numbers cannot be drawn again."""

    def __init__(self, promise: Promise, randomness: Randomness, secure: bool) -> None:
        self.promise, self.secure, self._randomness = promise, secure, randomness

    def depends_on_rounds(self) -> str | None:
        return self.promise.depends_on_rounds()

    def words(self) -> list[str]:
        lines = self.promise.words()
        if self.promise.options.random == "seeded":  # asked for; in the simulator it goes without saying
            lines.append("privacy: noise and cohorts come from the seed: from whoever knows it nothing is kept")
        return lines

    def cohort(self, there: Sequence[int], t: int) -> list[int]:
        """Each client by a number of its own below the rate, whoever else takes part."""
        p = self.promise
        drawn = self._randomness.uniforms(p.clients, Purpose.TAKES_PART, t).tolist()
        return [client for client in there if drawn[client] < p.rate]

    def first_state(self, classes: int, features: int) -> Tensors:
        """The clip bound, and what prototypes are made of: noisy sums (K, Q), counts (K) and the variance of both."""
        sums = torch.zeros(classes, features, dtype=torch.float64)
        counts, variance = torch.zeros(classes, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        clip = torch.tensor(self.promise.options.clip, dtype=torch.float64)
        return {"clip": clip, "prototype_sums": sums, "prototype_counts": counts, "prototype_variance": variance}

    def told(self, state: Tensors) -> Mapping[str, float]:
        """What goes to clients with their task: the bound, and the deviations of the noise that each adds."""
        p, found = self.promise, {"clip": float(state["clip"]), "noise": 0.0, "count_noise": 0.0}
        if p.options.where == "client" and p.noise:
            own = 1 / math.sqrt(max(1, p.clients))
            found["noise"] = p.update_noise * own
            found["count_noise"] = p.count_noise * own if p.options.clipping == "adaptive" else 0.0
        return found

    def begin(self, state: Tensors, t: int, start: Weights, returned: Shapes, means: bool) -> PrivateSum:
        """A round's sum; `means`: the method wants class means."""
        classes, features = state["prototype_sums"].shape if means else (0, 0)
        vector = Vector(self.promise.options, start.params.shape[-1], returned, classes, features)
        return PrivateSum(self.promise, self._randomness, state, t, start, vector)

    def record(self, state: Tensors, t: int) -> dict[str, Any]:
        """What is on record of round t besides what everybody may know: the bound it had, and epsilon after it."""
        return {"clip": float(state["clip"]), "epsilon": self.promise.epsilon_after(t + 1)}

    def summary(self, rounds: int) -> dict[str, Any]:
        """What result.json says of it; epsilon is also a number of its own, where it is finite."""
        p, spent = self.promise, self.promise.epsilon_after(rounds)
        about = {"delta": p.options.delta, "noise": p.noise, "where": p.options.where, "expected_cohort": p.cohort}
        if not math.isfinite(spent):
            return {"privacy": {"epsilon": None, **about}}
        return {"epsilon": spent, "privacy": {"epsilon": spent, **about}}


class PrivateSum:
    """The vectors of a round's clients, added up in float64."""

    def __init__(
        self, promise: Promise, randomness: Randomness, state: Tensors, t: int, start: Weights, vector: Vector
    ) -> None:
        self._promise, self._randomness, self._state, self._t = promise, randomness, state, t
        self._start, self._vector, self._bound = start, vector, float(state["clip"])
        like = torch.zeros(vector.size, dtype=torch.float64, device=start.params.device)
        self._total, self._unclipped, self._added = WeightedSum(like), 0.0, 0
        self._adaptive = promise.options.clipping == "adaptive"

    @property
    def clients(self) -> float:
        """How many the answer stands for."""
        return self._promise.cohort

    @property
    def expected(self) -> Expected:
        """What a client answers."""
        dtype = self._start.params.dtype
        flag = {UNCLIPPED: ((1,), dtype)} if self._adaptive else {}
        return Expected({UPDATE: ((self._vector.size,), dtype), **flag})

    @property
    def bytes_up(self) -> int:
        """Of the cohort that is expected."""
        size = self._start.params.element_size() * (self._vector.size + self._adaptive)
        return round(self._promise.cohort * size)

    def check(self, task: Task, payload: Payload) -> None:
        """Refuse what was not clipped; behind a client's own noise that cannot be seen."""
        if self._promise.options.where == "client":
            return
        expect_short(payload.tensors[UPDATE], self._bound)
        if self._adaptive and abs(float(payload.tensors[UNCLIPPED])) != 0.5:
            raise Refused("unclipped is neither 0.5 nor -0.5")

    def add(self, payload: Payload) -> None:
        """One client more. What rounding added to its length is taken off again: the bound is one of float64."""
        vector = payload.tensors[UPDATE].double()
        if self._promise.options.where == "server":
            vector, _ = clipped(vector, self._bound)
        self._total.add(vector, 1.0)
        if self._adaptive:
            self._unclipped += float(payload.tensors[UNCLIPPED])
        self._added += 1

    def _missing(self) -> float:
        """How much of the noise's deviation the server adds: all of it, or the shares of clients that sent nothing, so
        that the sum's deviation is the same however many there were.
        """
        p = self._promise
        if p.options.where == "server":
            return 1.0
        return math.sqrt(max(0.0, 1 - self._added / max(1, p.clients)))

    def result(self) -> tuple[Payload, Tensors]:
        """The answer that stands for the cohort, and the state after it."""
        p, total, missing = self._promise, self._total.result(), self._missing()
        deviation = p.update_noise * self._bound
        if deviation * missing:
            drawn = self._randomness.normals(len(total), Purpose.NOISE, self._t)
            total = total + deviation * missing * drawn.to(total.device)
        sums = self._vector.cut(total)
        state = dict(self._state)
        if self._adaptive:
            state["clip"] = self._next_bound(missing)
        tensors: dict[str, Tensor] = {
            **self._start.tensors(),
            "params": (self._start.params.double() + sums.move / p.cohort).to(self._start.params.dtype),
            "losses": torch.zeros(0, dtype=torch.float64),
        }
        for name, part in sums.returned.items():
            tensors[name] = (part / p.cohort).to(self._vector.returned[name][1])
        if sums.means is not None:
            tensors |= self._prototypes(sums, state, deviation / p.options.prototype_scale)
        return Payload(tensors, {"samples": 1, "steps": 1}), state

    def _next_bound(self, missing: float) -> Tensor:
        """C <- C exp(-rate (share that was not clipped - quantile)), of the noisy share."""
        p, o = self._promise, self._promise.options
        noisy = self._unclipped
        if p.noise and missing:
            noisy += p.count_noise * missing * float(self._randomness.normals(1, Purpose.COUNT_NOISE, self._t))
        share = min(max(noisy / p.cohort + 0.5, 0.0), 1.0)
        return torch.tensor(self._bound * math.exp(-o.clip_rate * (share - o.quantile)), dtype=torch.float64)

    def _prototypes(self, sums: Sums, state: dict[str, Tensor], deviation: float) -> dict[str, Tensor]:
        """Class means, of noisy sums over noisy counts that remember earlier rounds; a class whose count may well be
        noise alone has none.
        """
        assert sums.means is not None and sums.held is not None
        kept, device = self._promise.options.prototype_memory, sums.means.device
        before = {name: self._state[name].to(device) for name in ("prototype_sums", "prototype_counts")}
        state["prototype_sums"] = total = kept * before["prototype_sums"] + sums.means
        state["prototype_counts"] = counts = kept * before["prototype_counts"] + sums.held
        state["prototype_variance"] = kept**2 * self._state["prototype_variance"] + deviation**2
        known = counts > SURE * float(state["prototype_variance"]) ** 0.5
        means = total / torch.where(known, counts, torch.ones_like(counts)).unsqueeze(-1)
        shown = torch.where(known.unsqueeze(-1), means, torch.zeros_like(means)).to(self._start.params.dtype)
        return {"class_means": shown, "class_counts": torch.where(known, counts.round().clamp(min=1), 0.0).long()}
