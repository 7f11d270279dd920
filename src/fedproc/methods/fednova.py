"""FedNova (Wang et al. 2020): clients' moves are averaged by step, so that longer training does not weigh more."""

from __future__ import annotations

from typing import ClassVar

from fedproc.methods.fedavg import FedAvg


class FedNova(FedAvg):
    """FedAvg with the normalised merge (`merges.Normalised`)."""

    name: ClassVar[str] = "fednova"
    summary: ClassVar[str] = "FedAvg with moves normalised by local steps (Wang et al. 2020)"
    merge: ClassVar[str] = "normalised"
