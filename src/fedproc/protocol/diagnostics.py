"""Prototypes of methods that have none, for the nearest-prototype accuracy: they only observe.

They follow FedProc's rule: the uniform mean over the clients that hold a class, and a class that no client of the round
holds keeps its old one. State: prototypes (K, Q), known (K), and what the last evaluation used (`shown_...`), which is
the same unless that round was evaluated only because it was the last.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedproc.protocol.payload import Payload, Tensors
from fedproc.prototypes import Sums, add_means, from_sums


class Diagnostics:
    """Collects the clients' class means of one round."""

    def __init__(self, state: Tensors) -> None:
        self._state = state
        self._sums: Sums | None = None
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._counts: dict[int, Tensor] = {}

    def add(self, client: int, answer: Payload) -> None:
        """Take a client's class means, unless something was wrong with them."""
        means, counts = answer.tensors.get("class_means"), answer.tensors.get("class_counts")
        if means is None or counts is None:
            return
        self._own[client] = (means, counts)
        self._sums = add_means(self._sums, means, counts, "uniform")

    def count(self, client: int, answer: Payload) -> None:
        """Note how many samples of each class a client has, where it tells."""
        if "class_counts" in answer.tensors:
            self._counts[client] = answer.tensors["class_counts"]

    def settled(self, regular: bool) -> Tensors:
        """The state after this round; an evaluation that is not `regular` leaves what later ones build on."""
        if self._sums is None:
            return self._state
        merged, held = from_sums(self._sums, next(iter(self._own.values()))[0].dtype)
        if "prototypes" in self._state:
            merged = torch.where(held.unsqueeze(-1), merged, self._state["prototypes"])
            held = held | self._state["known"]
        base = {"prototypes": merged, "known": held}
        if not regular:
            base = {name: self._state[name] for name in ("prototypes", "known") if name in self._state}
        return {**base, "shown_prototypes": merged, "shown_known": held}

    @staticmethod
    def shown(state: Tensors, classes: int, features: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The prototypes that the last evaluation used; none are known before."""
        if "shown_prototypes" in state:
            return state["shown_prototypes"], state["shown_known"]
        nothing = torch.zeros(classes, features, dtype=like.dtype, device=like.device)
        return nothing, torch.zeros(classes, dtype=torch.bool, device=like.device)

    def of(self, client: int, otherwise: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        """The prototypes for evaluating a client's own model: its own class means; none where they came to nothing."""
        if not self._own:
            return {"prototypes": otherwise[0], "known": otherwise[1]}
        means, counts = self._own.get(client, next(iter(self._own.values())))
        if client not in self._own:
            means, counts = torch.zeros_like(means), torch.zeros_like(counts)
        return {"prototypes": means, "known": counts > 0}

    def counts(self) -> dict[int, Tensor]:
        """The class counts (K,) of each client that told them."""
        return self._counts
