"""Ditto (Li et al. 2021): beside the global model each client trains one of its own, held near it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.method import Local, Phase, Tensors, Weights
from fedproc.methods.own_models import OWN, OwnModels


class Options(method.Options):
    weight: float = Field(
        1.0, ge=0, description="lambda, how strongly a client's own model is held near the global one"
    )


class Ditto(OwnModels):
    """The global model is FedAvg's. A client's own v goes on from where it was, along grad CE(v) + lambda (v - w^t),
    with the same batches.
    """

    name: ClassVar[str] = "ditto"
    summary: ClassVar[str] = "own models held near FedAvg's (Li et al. 2021)"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def phases(self, t: int) -> tuple[Phase, ...]:
        whole = super().phases(t)
        return (*whole, replace(whole[-1], name=OWN, returns=False, second=True))

    def start(self, sent: Weights, state: Tensors, phase: str) -> Weights:
        return (self.own_model(state) if phase == OWN else None) or super().start(sent, state, phase)

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        above = super().correct(gradient, local)
        if local.phase.name != OWN:
            return above
        return above + self.options.weight * (local.weights.params.detach() - local.sent["params"])
