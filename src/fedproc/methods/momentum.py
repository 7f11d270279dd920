"""Momentum that goes on over the rounds, for methods that are one long optimisation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedproc.methods.method import Local, Method
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import Weights


class KeepsMomentum(Method):
    """The client's state holds the velocity."""

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        above = super().first_client_state(client, sent, fresh)
        return {**above, "velocity": torch.zeros_like(sent.params)}

    def start_velocity(self, state: Tensors, phase: str) -> Tensor | None:
        return state["velocity"]

    def next_client_state(self, local: Local) -> Tensors:
        return {**super().next_client_state(local), "velocity": local.velocity}
