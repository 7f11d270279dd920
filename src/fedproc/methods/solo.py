"""SOLO: every client trains alone on what it has; the lower bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from pydantic import Field

from fedproc.methods import fedavg
from fedproc.methods.fedavg import FedAvg, Local, Tensors
from fedproc.networks.flat import Weights


class Options(fedavg.Options):
    epochs: int = Field(300, ge=1, description="epochs of each client's one optimisation, whatever --rounds is")


class Solo(FedAvg):
    """Own initial weights, momentum kept, no merge: rounds of E epochs until `epochs` are done.

    Accuracy is the mean over the clients' models on the global test set.
    """

    name: ClassVar[str] = "solo"
    summary: ClassVar[str] = "each client alone on its own data, no federation: the lower bound"
    options_type: ClassVar[type[fedavg.Options]] = Options
    own_models: ClassVar[bool] = True
    keeps_momentum: ClassVar[bool] = True
    options: Options

    @property
    def rounds(self) -> int:
        return -(-self.options.epochs // self.problem.epochs)

    def epochs(self, t: int) -> int:
        return min(self.problem.epochs, self.options.epochs - t * self.problem.epochs)

    def keep_first(self, client: int, start: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        own = fresh(client)
        return {**super().keep_first(client, own, fresh), **own.tensors()}

    def keep(self, local: Local) -> Tensors:
        return {**super().keep(local), **local.weights.tensors()}
