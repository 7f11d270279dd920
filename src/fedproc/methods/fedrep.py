"""FedRep (Collins et al. 2021): a client's own classifier is trained first, then the common representation under it."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import TensorInfo
from fedproc.protocol.task import Phase


class Options(method.Options):
    head_epochs: int = Field(10, ge=0, description="epochs of the classifier alone, in each round")
    body_epochs: int | None = Field(None, ge=1, description="epochs of the rest alone, after it (default: --epochs)")


class FedRep(FedAvg):
    """Two phases a round, each with momentum of its own, the other part frozen; encoder and head are averaged."""

    name: ClassVar[str] = "fedrep"
    summary: ClassVar[str] = "own classifiers trained before the common rest (Collins et al. 2021)"
    family: ClassVar[str] = "personal"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def phases(self, t: int) -> tuple[Phase, ...]:
        body = self.options.body_epochs or self.server.epochs
        first = Phase(self.options.head_epochs, "head", trains="classifier", returns=False)
        return (*((first,) if first.epochs else ()), Phase(body, "body", trains="features"))

    def personal(self, tensor: TensorInfo) -> bool:
        return tensor.name.startswith("classifier.") or super().personal(tensor)
