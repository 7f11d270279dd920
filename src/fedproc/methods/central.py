"""Central training: all data at one place; the upper bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Indices
from fedproc.methods.momentum import KeepsMomentum


class Central(KeepsMomentum, FedAvg):
    """One client with everyone's data, T times E epochs, momentum going on."""

    name: ClassVar[str] = "central"
    summary: ClassVar[str] = "all data at one place, T times E epochs: the upper bound"
    family: ClassVar[str] = "bounds"
    federated: ClassVar[bool] = False

    @classmethod
    def holdings(cls, shares: Sequence[Indices]) -> list[Indices]:
        return [np.concatenate(list(shares))]
