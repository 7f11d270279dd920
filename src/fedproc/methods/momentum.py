"""Momentum that goes on over the rounds, for methods that are one long optimisation."""

from __future__ import annotations

from collections.abc import Callable

from fedproc import optimizers
from fedproc.methods.method import Local, Method
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import Weights


class KeepsMomentum(Method):
    """The client's state holds what the optimizer keeps: of SGD, the velocity."""

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        above = super().first_client_state(client, sent, fresh)
        return {**above, **optimizers.first_state(self.client.optimizer, sent.params)}

    def start_optimizer(self, state: Tensors, phase: str) -> Tensors | None:
        return {name: state[name] for name in optimizers.NAMES[self.client.optimizer]}

    def next_client_state(self, local: Local) -> Tensors:
        return {**super().next_client_state(local), **local.optimizer}
