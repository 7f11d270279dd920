"""FedAvgM (Hsu et al. 2019): the server moves with momentum."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedproc.methods import fedavg
from fedproc.methods.fedavg import FedAvg


class Options(fedavg.Options):
    beta: float = Field(0.9, ge=0, lt=1, description="momentum of the server")
    eta: float = Field(1.0, gt=0, description="learning rate of the server")


class FedAvgM(FedAvg):
    """FedAvg with the server step `momentum` (`server_steps.momentum`)."""

    name: ClassVar[str] = "fedavgm"
    summary: ClassVar[str] = "FedAvg with momentum at the server (Hsu et al. 2019)"
    options_type: ClassVar[type[fedavg.Options]] = Options
    server_step: ClassVar[str] = "momentum"
    options: Options

    def step_numbers(self) -> tuple[float, float]:
        return self.options.beta, self.options.eta
