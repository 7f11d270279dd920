"""Central training: all data at one place; the upper bound."""

from __future__ import annotations

from typing import ClassVar

from fedproc.methods.fedavg import FedAvg


class Central(FedAvg):
    """One client with everyone's data, T times E epochs, momentum kept."""

    name: ClassVar[str] = "central"
    summary: ClassVar[str] = "all data at one place, T times E epochs: the upper bound"
    one_place: ClassVar[bool] = True
    keeps_momentum: ClassVar[bool] = True
