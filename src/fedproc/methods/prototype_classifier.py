"""What FedETF and FedNH have in common: unit vectors of the server are the classifier, and no client trains it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc import prototypes, streams
from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Batch, Local, Tensors, Term, Terms
from fedproc.protocol.task import Phase


class Options(method.Options):
    scale: float = Field(10.0, gt=0, description="s, by which cosines are multiplied: 1/s is a temperature")


class PrototypeClassifier(FedAvg):
    """Cross-entropy of s cos(z, c_k). After each round the classifier is s c_k without bias: as z has length 1, its
    accuracy is that of the nearest prototype.
    """

    family: ClassVar[str] = "prototypes"
    unit_z: ClassVar[bool] = True
    options: Options

    # the server's half

    def _first(self) -> Tensor:
        """The first c (K, Q), in float64."""
        raise TypeError(f"{type(self).__name__} must say what its first prototypes are")

    def first_state(self, params: int) -> Tensors:
        return {**super().first_state(params), "prototypes": self._first().to(self.client.dtype)}

    def phases(self, t: int) -> tuple[Phase, ...]:
        return tuple(replace(phase, trains="features") for phase in super().phases(t))

    def send(self, state: Tensors) -> Tensors:
        return {**super().send(state), "prototypes": state["prototypes"]}

    def finish(self, params: Tensor, state: Tensors) -> Tensor:
        weight = (self.options.scale * state["prototypes"].to(params)).flatten()  # the classifier is last of all
        features = super().finish(params, state)[: -len(weight) - self.client.classes]
        return torch.cat([features, weight, features.new_zeros(self.client.classes)])

    def prototypes(self, state: Tensors) -> tuple[Tensor, Tensor] | None:
        found = state["prototypes"]
        return found, torch.ones(len(found), dtype=torch.bool, device=found.device)

    # the client's half

    def loss(self, batch: Batch, local: Local) -> Terms:
        c = local.sent["prototypes"]
        everyone = torch.ones(c.shape[:-1], dtype=torch.bool, device=c.device)
        offset = self._offset(local)

        def cross_entropy() -> tuple[Tensor, Tensor | None]:
            return prototypes.contrast(batch.z, batch.labels, c, 1 / self.options.scale, everyone, offset)

        return {**super().loss(batch, local), "cross_entropy": Term(cross_entropy)}

    def _offset(self, local: Local) -> Tensor | None:
        """What is added to the logits (..., K)."""
        gamma = self.client.calibrate_prototypes
        return gamma * local.log_shares if gamma else None


def orthonormal(classes: int, features: int, seed: int) -> Tensor:
    """Random orthonormal vectors (K, Q) in float64."""
    if classes > features:
        raise ValueError(f"{classes} classes: expected at most {features}, as many as z has features")
    drawn = streams.normals(streams.key(seed, streams.Purpose.PROTOTYPES), classes * features)
    basis, triangle = torch.linalg.qr(drawn.view(classes, features).T)
    signed: Tensor = basis * triangle.diagonal().sign()  # by the draw, not by the library
    return signed.T.contiguous()
