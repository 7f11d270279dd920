"""Methods by name. Adding one is adding a file and a line here."""

from __future__ import annotations

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedproc import FedProc

METHODS: dict[str, type[FedAvg]] = {method.name: method for method in (FedAvg, FedProc)}
