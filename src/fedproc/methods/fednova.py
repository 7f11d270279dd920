"""FedNova (Wang et al. 2020): clients' moves are averaged by step, so that longer training does not weigh more."""

from __future__ import annotations

from typing import ClassVar

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Options


class FedNova(FedAvg):
    """FedAvg with the normalised merge (`merges.Normalised`)."""

    name: ClassVar[str] = "fednova"
    summary: ClassVar[str] = "FedAvg with moves normalised by local steps (Wang et al. 2020)"
    merge: ClassVar[str] = "normalised"

    @classmethod
    def needs_mean(cls, options: Options) -> str | None:
        return super().needs_mean(options) or "it is FedAvg but for the mean of moves by their steps"
