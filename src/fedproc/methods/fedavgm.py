"""FedAvgM (Hsu et al. 2019): the server moves with momentum."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedproc.methods import fedavg
from fedproc.methods.fedavg import FedAvg


class Options(fedavg.Options):
    beta: float | None = Field(None, ge=0, lt=1, description="momentum of the server (default: --server-beta, 0.9)")
    eta: float | None = Field(None, gt=0, description="learning rate of the server (default: --server-lr, 1)")


class FedAvgM(FedAvg):
    """FedAvg with the server step `momentum` (`server_steps.momentum`)."""

    name: ClassVar[str] = "fedavgm"
    summary: ClassVar[str] = "FedAvg with momentum at the server (Hsu et al. 2019)"
    options_type: ClassVar[type[fedavg.Options]] = Options
    server_step: ClassVar[str] = "momentum"
    options: Options

    def step_numbers(self) -> tuple[float, float]:
        beta, eta = super().step_numbers()
        own = self.options
        return beta if own.beta is None else own.beta, eta if own.eta is None else own.eta
