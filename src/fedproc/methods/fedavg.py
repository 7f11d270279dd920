"""FedAvg (McMahan et al. 2017): cross-entropy at the clients; the server takes the mean of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc import kernels
from fedproc.kernels import cpu
from fedproc.methods.method import Batch, Local, Method, Term, Terms


class FedAvg(Method):
    """The cross-entropy of logits that are calibrated by the client's own class shares, if asked for."""

    name: ClassVar[str] = "fedavg"
    summary: ClassVar[str] = "weighted mean of the clients' weights (McMahan et al. 2017)"
    family: ClassVar[str] = "averaging"

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "cross_entropy")

    def loss(self, batch: Batch, local: Local) -> Terms:
        above: Any = super().logits
        plain = type(self).logits is FedAvg.logits and above.__func__ is Method.logits
        values = CrossEntropy(
            partial(self.logits, batch, local), batch.labels,
            *((batch.logits, self._offset(local)) if plain else (None, None)),
        )  # fmt: skip
        return {**super().loss(batch, local), "cross_entropy": Term(values)}

    def logits(self, batch: Batch, local: Local) -> Tensor:
        logits, offset = super().logits(batch, local), self._offset(local)
        return logits if offset is None else logits + offset.unsqueeze(-2)

    def _offset(self, local: Local) -> Tensor | None:
        """What calibration adds to the logits (..., K)."""
        return self.client.calibrate * local.log_shares if self.client.calibrate else None


@dataclass(frozen=True)
class CrossEntropy:
    """The values of a term that is a cross-entropy. Where the logits are the `own` ones of a batch, plus an offset
    (..., K) if there is one, the slope is known (methods/known.py).
    """

    logits: Callable[[], Tensor]
    labels: Tensor
    own: Tensor | None = None
    offset: Tensor | None = None

    def __call__(self) -> Tensor:
        return cross_entropies(self.logits(), self.labels)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy (...) of each sample's logits (..., K)."""
    if kernels.usable(logits):
        from fedproc.kernels import losses

        return losses.cross_entropies(logits, labels)
    fits = logits.dim() == 2 and labels.shape == logits.shape[:1] and labels.dtype == torch.int64
    if fits and cpu.usable(logits):
        return cpu.cross_entropies(logits, labels)
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
