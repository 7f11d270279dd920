"""What Ditto and fine-tuning have in common: a model of each client's own, beside its part of the global one."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Local, Tensors, Weights
from fedproc.protocol.weights import NAMES

OWN = "own"  # the phase that trains it


class OwnModels(FedAvg):
    """The client's state holds its model, which begins as the first one it is sent; the phase `own` trains it."""

    family: ClassVar[str] = "personal"

    def own_model(self, state: Tensors) -> Weights | None:
        return Weights.of({name: state[f"own_{name}"] for name in NAMES})

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        return {**super().first_client_state(client, sent, fresh), **_named(sent)}

    def next_client_state(self, local: Local) -> Tensors:
        above = super().next_client_state(local)
        return {**above, **_named(local.weights)} if local.phase.name == OWN else above


def _named(weights: Weights) -> Tensors:
    return {f"own_{name}": tensor for name, tensor in weights.tensors().items()}
