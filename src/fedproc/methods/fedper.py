"""FedPer (Arivazhagan et al. 2019): each client keeps the last layers to itself."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import TensorInfo


class Options(method.Options):
    head: bool = Field(False, description="the projection head is personal too, not only the classifier")


class FedPer(FedAvg):
    """The classifier is never averaged: a client goes on with its own, from the common start."""

    name: ClassVar[str] = "fedper"
    summary: ClassVar[str] = "each client has a classifier of its own (Arivazhagan et al. 2019)"
    family: ClassVar[str] = "personal"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def personal(self, tensor: TensorInfo) -> bool:
        last = ("classifier.", "head.") if self.options.head else ("classifier.",)
        return tensor.name.startswith(last) or super().personal(tensor)
