"""The client's half: what leaves a client of a private run, and nothing else does."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedproc.privacy.options import PrivacyOptions
from fedproc.privacy.randomness import Randomness
from fedproc.privacy.vector import clipped, packed
from fedproc.protocol.guard import Refused
from fedproc.protocol.payload import Payload
from fedproc.protocol.postprocess import Postprocessor
from fedproc.protocol.task import Kind, Task
from fedproc.streams import Purpose

UPDATE, UNCLIPPED = "update", "unclipped"  # all that is sent; the latter with adaptive clipping alone


def own_noise(options: PrivacyOptions | None, told: Mapping[str, float]) -> float:
    """The noise multiplier of all that a client sends as it is told to: of its vector, and with adaptive clipping of
    whether it was clipped, too (1/2 or -1/2, so a deviation counts twice).
    """
    parts = [told.get("noise", 0.0)]
    if options is not None and options.clipping == "adaptive":
        parts.append(2 * told.get("count_noise", 0.0))
    return 1 / math.sqrt(sum(part**-2 for part in parts)) if min(parts) > 0 else 0.0


class PrivateClient(Postprocessor):
    """A trained client sends one clipped vector; asked how many samples it has, it says 1, as all do; nothing else is
    answered. The bounds and its part of the noise come with the task.
    """

    quiet = True

    def __init__(self, options: PrivacyOptions, randomness: Randomness) -> None:
        self.options, self._randomness = options, randomness

    def at_client(self, task: Task, payload: Payload) -> Payload:
        if task.kind is Kind.DESCRIBE:
            return Payload({}, {"samples": 1})
        if task.kind is not Kind.TRAIN:
            raise Refused(f"asked for {task.kind}, which a client of a private run does not answer")
        bound = self._bound(task)
        dtype = payload.tensors["params"].dtype
        vector = packed(self.options, task.payload.tensors["params"], payload.tensors)
        vector, whole = clipped(vector, bound)
        vector = self._noisy(vector, task, bound * task.privacy["noise"], Purpose.CLIENT_NOISE)
        tensors = {UPDATE: vector.to(dtype)}
        if self.options.clipping == "adaptive":
            unclipped = torch.tensor([0.5 if whole else -0.5], dtype=torch.float64, device=vector.device)
            count_noise = task.privacy["count_noise"]
            tensors[UNCLIPPED] = self._noisy(unclipped, task, count_noise, Purpose.CLIENT_COUNT_NOISE).to(dtype)
        return Payload(tensors, {})

    def _bound(self, task: Task) -> float:
        """The clip bound, unless the server's word is none that this run can have."""
        bound = task.privacy.get("clip", 0.0)
        if not 0 < bound < math.inf:
            raise Refused(f"asked to clip to {bound}")
        if self.options.clipping == "fixed" and bound != self.options.clip:
            raise Refused(f"asked to clip to {bound:g}, the run has --privacy.clip {self.options.clip:g}")
        if self.options.where == "client" and self.options.noise != 0:
            if not task.privacy.get("noise", 0.0) > 0:
                raise Refused("asked to add no noise in a run with --privacy.where client")
            if self.options.clipping == "adaptive" and not task.privacy.get("count_noise", 0.0) > 0:
                raise Refused("asked to add no noise to whether it was clipped, in a run with --privacy.where client")
        return bound

    def _noisy(self, vector: Tensor, task: Task, deviation: float, purpose: Purpose) -> Tensor:
        if not deviation:
            return vector
        drawn = self._randomness.normals(len(vector), purpose, task.round, task.client)
        return vector + deviation * drawn.to(vector.device)
