"""FedBN (Li et al. 2021): batch-norm layers are each client's own."""

from __future__ import annotations

from typing import ClassVar

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import TensorInfo


class FedBN(FedAvg):
    """Scale, shift and running statistics of every batch-norm layer, found by its type, stay at the client."""

    name: ClassVar[str] = "fedbn"
    summary: ClassVar[str] = "each client has batch-norm layers of its own (Li et al. 2021)"
    family: ClassVar[str] = "personal"

    def personal(self, tensor: TensorInfo) -> bool:
        return "BatchNorm" in tensor.layer or super().personal(tensor)
