"""SOLO: every client trains alone on what it has; the lower bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import TensorInfo
from fedproc.methods.momentum import KeepsMomentum
from fedproc.protocol.payload import Tensors
from fedproc.protocol.task import Phase
from fedproc.protocol.weights import Weights


class Options(method.Options):
    epochs: int = Field(300, ge=1, description="epochs of each client's one optimisation, whatever --rounds is")
    start: Literal["own", "same"] = Field("own", description="each client's own initial weights, or the same for all")


class Solo(KeepsMomentum, FedAvg):
    """Initial weights, momentum going on, nothing shared: rounds of E epochs until `epochs` are done.

    Accuracy is the mean over the clients' models on the global test set.
    """

    name: ClassVar[str] = "solo"
    summary: ClassVar[str] = "each client alone on its own data, no federation: the lower bound"
    family: ClassVar[str] = "bounds"
    options_type: ClassVar[type[method.Options]] = Options
    federated: ClassVar[bool] = False
    options: Options

    @property
    def rounds(self) -> int:
        return -(-self.options.epochs // self.server.epochs)

    def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]:
        return range(len(self.server.client_sizes))

    def phases(self, t: int) -> tuple[Phase, ...]:
        return (Phase(min(self.server.epochs, self.options.epochs - t * self.server.epochs)),)

    def personal(self, tensor: TensorInfo) -> bool:
        return True

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        start = fresh(client) if self.options.start == "own" else sent
        return {**super().first_client_state(client, sent, fresh), **start.tensors()}
