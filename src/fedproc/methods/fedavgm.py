"""FedAvgM (Hsu et al. 2019): the server moves with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg


class Options(method.Options):
    beta: float | None = Field(None, ge=0, lt=1, description="momentum of the server (default: --server-beta, 0.9)")
    eta: float | None = Field(None, gt=0, description="learning rate of the server (default: --server-lr, 1)")


class FedAvgM(FedAvg):
    """FedAvg with the server step `momentum` (`server_steps.Momentum`)."""

    name: ClassVar[str] = "fedavgm"
    summary: ClassVar[str] = "FedAvg with momentum at the server (Hsu et al. 2019)"
    options_type: ClassVar[type[method.Options]] = Options
    server_step: ClassVar[str] = "momentum"
    options: Options

    def step_numbers(self) -> Mapping[str, float]:
        given = {"beta": self.options.beta, "lr": self.options.eta}
        return {**super().step_numbers(), **{name: value for name, value in given.items() if value is not None}}
