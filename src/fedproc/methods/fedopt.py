"""FedAdam, FedYogi, FedAdagrad (Reddi et al. 2021): the server takes the clients' mean move as a gradient, and steps by
an adaptive optimizer (`server_steps.Adaptive`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg


class Options(method.Options):
    eta: float = Field(0.01, gt=0, description="learning rate of the server")
    beta: float = Field(0.9, ge=0, lt=1, description="momentum of the server")
    tau: float = Field(1e-3, gt=0, description="added to the root of the measure of squared moves")
    start_v: Literal["zero", "tau2"] = Field(
        "zero", description="where the measure of squared moves starts: 0 or tau^2"
    )


class DecayingOptions(Options):
    beta2: float = Field(0.99, ge=0, lt=1, description="how much of the measure of squared moves stays in a round")


class AdagradOptions(Options):
    beta: float = Field(0.0, ge=0, lt=1, description="momentum of the server")
    tau: float = Field(0.01, gt=0, description="added to the root of the sum of squared moves")


class FedAdagrad(FedAvg):
    """Squared moves are added up over the rounds."""

    name: ClassVar[str] = "fedadagrad"
    summary: ClassVar[str] = "FedAvg with Adagrad at the server (Reddi et al. 2021)"
    options_type: ClassVar[type[method.Options]] = AdagradOptions
    server_step: ClassVar[str] = "adagrad"
    options: Options

    def step_numbers(self) -> Mapping[str, float]:
        given = self.options
        numbers = {"lr": given.eta, "beta": given.beta, "tau": given.tau}
        return {**super().step_numbers(), **numbers, "first_v": given.tau**2 if given.start_v == "tau2" else 0.0}


class FedAdam(FedAdagrad):
    """Their measure is a running mean."""

    name: ClassVar[str] = "fedadam"
    summary: ClassVar[str] = "FedAvg with Adam at the server (Reddi et al. 2021)"
    options_type: ClassVar[type[method.Options]] = DecayingOptions
    server_step: ClassVar[str] = "adam"
    options: DecayingOptions

    def step_numbers(self) -> Mapping[str, float]:
        return {**super().step_numbers(), "beta2": self.options.beta2}


class FedYogi(FedAdam):
    """Their measure changes by no more than the newest one."""

    name: ClassVar[str] = "fedyogi"
    summary: ClassVar[str] = "FedAvg with Yogi at the server (Reddi et al. 2021)"
    server_step: ClassVar[str] = "yogi"
