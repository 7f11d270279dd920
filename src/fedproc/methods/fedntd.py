"""FedNTD (Lee et al. 2022): clients keep what the global model says of the classes that are not true."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Batch, Local, Term, Terms


class Options(method.Options):
    beta: float = Field(1.0, ge=0, description="weight of the distillation")
    tau: float = Field(1.0, gt=0, description="temperature of the distillation")


class FedNTD(FedAvg):
    """Adds beta tau^2 KL(q_global || q): softmaxes at temperature tau over the K - 1 classes that are not the sample's.
    The global model is the one the round started from, frozen and in evaluation mode.
    """

    name: ClassVar[str] = "fedntd"
    summary: ClassVar[str] = "distillation of the global model's not-true classes (Lee et al. 2022)"
    family: ClassVar[str] = "representation"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "distillation_loss")

    def loss(self, batch: Batch, local: Local) -> Terms:
        _, teacher = batch.frozen(local.start)
        values = not_true_divergence(batch.logits, teacher, batch.labels, self.options.tau)
        return {**super().loss(batch, local), "distillation_loss": Term(values, self.options.beta)}


def not_true_divergence(logits: Tensor, teacher: Tensor, labels: Tensor, tau: float) -> Tensor:
    """tau^2 KL(teacher || logits) (..., B) of softmaxes over the classes other than the label's."""
    true = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, labels.unsqueeze(-1), True)
    out = torch.finfo(logits.dtype).min / 2

    def log_softmax(values: Tensor) -> Tensor:
        return (values / tau).masked_fill(true, out).log_softmax(dim=-1)

    known, own = log_softmax(teacher), log_softmax(logits)
    divergence = known.exp() * (known - own)
    return tau**2 * divergence.masked_fill(true, 0.0).sum(dim=-1)
