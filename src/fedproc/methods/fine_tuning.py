"""Fine-tuning: after the last round each client trains the global model on by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from fedproc.methods import method
from fedproc.methods.method import Phase
from fedproc.methods.own_models import OWN, OwnModels

EPOCHS = 10


class Options(method.Options):
    tune_epochs: int = Field(EPOCHS, ge=0, description="epochs of each client's own model, after the last round")
    head: bool = Field(False, description="the classifier alone is trained then")


class FineTuning(OwnModels):
    """FedAvg, and one round more, in which every client trains what FedAvg ended with; nothing comes back."""

    name: ClassVar[str] = "fine-tuning"
    summary: ClassVar[str] = "FedAvg, then each client by itself on its own data"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    @property
    def own_rounds(self) -> int:
        return super().own_rounds + (1 if self.options.tune_epochs else 0)

    def depends_on_rounds(self) -> str | None:
        return super().depends_on_rounds() or "clients train by themselves after the last of all rounds"

    def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]:
        if t < self.rounds:
            return super().participants(t, sampled)
        return [client for client, size in enumerate(self.server.client_sizes) if size]

    def phases(self, t: int) -> tuple[Phase, ...]:
        if t < self.rounds:
            return super().phases(t)
        trains: method.Trains = "classifier" if self.options.head else "all"
        return (Phase(self.options.tune_epochs, OWN, trains, returns=False, second=True),)
