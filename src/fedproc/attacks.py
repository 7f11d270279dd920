"""Hostile clients, for experiments: what they train on, and what they send instead of what they computed.

An attack acts in the simulator alone, between a client and the round loop, so all executors have the same. Diagnostics,
which only observe, and running statistics are left as they are. docs/merging.md says what withstands which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc import streams
from fedproc.errors import InputError
from fedproc.protocol.payload import Payload
from fedproc.protocol.postprocess import Postprocessor
from fedproc.protocol.task import Kind, Task
from fedproc.protocol.weights import Shared, Weights

KEPT = frozenset({"buffers", "counters", "losses", "class_counts", "class_covariances"})

Change = Callable[[Tensor, float, int], Tensor]  # of moves or other vectors (..., D), the strength, a key of streams


def _flipped(move: Tensor, strength: float, key: int) -> Tensor:
    return -strength * move


def _scaled(move: Tensor, strength: float, key: int) -> Tensor:
    return strength * move


def _noisy(move: Tensor, strength: float, key: int) -> Tensor:
    """With noise that is, in the mean, `strength` times as long as the vector itself."""
    drawn = streams.normals(key, move.numel()).view(move.shape).to(move)
    lengths: Tensor = torch.linalg.vector_norm(move, dim=-1, keepdim=True)
    return move + strength / math.sqrt(max(1, move.shape[-1])) * lengths * drawn


@dataclass(frozen=True)
class Attack:
    """What hostile clients do: a `change` of what they send, or of their `labels` before training, or of their
    `prototypes` alone. `strength` is the usual one, None: it has none; `means` says what it stands for.
    """

    summary: str
    strength: float | None = None
    means: str = ""
    change: Change | None = None
    labels: bool = False
    prototypes: bool = False


ATTACKS = {
    "sign-flip": Attack("moves the other way", 1.0, "as far", _flipped),
    "scaling": Attack("moves on in its direction", 10.0, "as far", _scaled),
    "noise": Attack("adds Gaussian noise to its move", 10.0, "as long as the move", _noisy),
    "label-flip": Attack("trains on label K - 1 - y in the place of y", labels=True),
    "prototype-poisoning": Attack("sends each class's mean as that of another class", 10.0, "as long", prototypes=True),
}


def hostile_clients(share: float, clients: int, seed: int) -> list[int]:
    """Which clients are hostile: the first of one order, so that those of a smaller share are among them."""
    count = round(share * clients)
    return sorted(streams.order(streams.key(seed, streams.Purpose.ATTACKERS), clients)[:count].tolist())


def said(attack: str, strength: float | None, share: float, clients: int) -> str:
    """How many are hostile and how, in one line."""
    known = ATTACKS[attack]
    times = "" if strength in (None, 1) else f"{strength:g} times "
    how = f", {times}{known.means}" if known.means else ""
    return f"{round(share * clients)} of {clients} clients hostile: {attack} ({known.summary}{how})"


def expect_some(attack: str, share: float, clients: int) -> None:
    """Refuse a share of which no client is left, or nobody honest."""
    count = round(share * clients)
    if not 0 < count < clients:
        who = "nobody" if count == 0 else "everybody"
        raise InputError(
            f"--attackers {share:g}: of {clients} clients that is {who}; "
            f"take a share from {0.5 / clients:.2g} to {1 - 1 / clients:.2g}, or leave --attack {attack} out"
        )


class HostileClient(Postprocessor):
    """Sends something else than what was computed."""

    def __init__(self, attack: Attack, strength: float, seed: int, shared: Shared | None = None) -> None:
        self._attack, self._strength, self._seed, self._shared = attack, strength, seed, shared

    def at_client(self, task: Task, payload: Payload) -> Payload:
        if task.kind not in (Kind.TRAIN, Kind.CLASS_MEANS):
            return payload
        found = dict(payload.tensors)
        names = [name for name in found if name not in KEPT | task.expects.observe]
        if self._attack.prototypes and "class_means" in names:
            found["class_means"] = self._strength * swapped(found["class_means"], found["class_counts"])
        for number, name in enumerate(names if self._attack.change else ()):
            key = streams.key(self._seed, streams.Purpose.ATTACK, task.round, task.client, number)
            found[name] = self._changed(name, found[name], task, key)
        return Payload(found, payload.counts)

    def _changed(self, name: str, own: Tensor, task: Task, key: int) -> Tensor:
        assert self._attack.change is not None
        if not own.is_floating_point():
            return own
        if name != "params":
            return self._attack.change(own, self._strength, key)
        sent = Weights.of(task.payload.tensors)
        start = (sent if self._shared is None else self._shared.take(sent)).params
        return start + self._attack.change(own - start, self._strength, key)


def swapped(means: Tensor, counts: Tensor) -> Tensor:
    """Each class's mean (K, Q) is that of the next class that the client holds; of a single one, the opposite."""
    held = (counts > 0).nonzero().flatten()
    if len(held) == 1:
        return -means
    found = means.clone()
    found[held] = means[held.roll(-1)]
    return found


def flipped_labels(labels: Tensor, shares: Sequence[Tensor], classes: int) -> Tensor:
    """Labels (N,) of which those at the places of hostile clients (n,) are K - 1 - y."""
    found = labels.clone()
    for share in shares:
        found[share] = classes - 1 - labels[share]
    return found
