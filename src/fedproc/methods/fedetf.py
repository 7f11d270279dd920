"""FedETF (Li et al. 2023): the classifier is a simplex, fixed from the start and the same at all clients."""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedproc.methods import method, prototype_classifier
from fedproc.methods.method import Local
from fedproc.methods.prototype_classifier import PrototypeClassifier, orthonormal


class Options(prototype_classifier.Options):
    gamma: float = Field(1.0, ge=0, description="strength of the balancing by the client's class counts; 0: none")


class FedETF(PrototypeClassifier):
    """Minimises the cross-entropy of s cos(z, v_k) + gamma log n_ik; a class that a client does not have counts as one
    sample. The K unit vectors v_k are as far from each other as can be, and are never trained.
    """

    name: ClassVar[str] = "fedetf"
    summary: ClassVar[str] = "a fixed simplex as the classifier, balanced by class counts (Li et al. 2023)"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def _first(self) -> Tensor:
        """sqrt(K/(K - 1)) (I - 11'/K) U, U random with orthonormal rows."""
        classes = self.client.classes
        rows = orthonormal(classes, self.client.features, self.server.model_seed)
        if classes == 1:
            return rows
        return math.sqrt(classes / (classes - 1)) * (rows - rows.mean(dim=0))

    def _offset(self, local: Local) -> Tensor | None:
        above, counts = super()._offset(local), local.class_counts
        balance = self.options.gamma * counts.clamp(min=1).log() if self.options.gamma else None
        return balance if above is None else above if balance is None else above + balance
