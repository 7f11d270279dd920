"""FedLC (Zhang et al. 2022): logits are calibrated by margins that grow as a client has less of a class."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Batch, Local, Term, Terms


class Options(method.Options):
    tau: float = Field(1.0, ge=0, description="strength of the margins")
    absent: Literal["out", "floor"] = Field(
        "out", description="classes that a client does not have: out of its softmax, or counted as half a sample"
    )
    loss: Literal["cross-entropy", "printed"] = Field(
        "cross-entropy", description="of calibrated logits; printed: the paper's formula, without the true class below"
    )


class FedLC(FedAvg):
    """Minimises the cross-entropy of logit_k - tau n_ik^(-1/4). The loss as the paper prints it has no lower bound."""

    name: ClassVar[str] = "fedlc"
    summary: ClassVar[str] = "logits calibrated by margins of the client's class counts (Zhang et al. 2022)"
    family: ClassVar[str] = "calibration"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def logits(self, batch: Batch, local: Local) -> Tensor:
        counts = local.class_counts.unsqueeze(-2)
        logits = super().logits(batch, local) - self.options.tau * counts.clamp(min=0.5).pow(-0.25)
        if self.options.absent == "floor":
            return logits
        there = (counts > 0).expand_as(logits).scatter(-1, batch.labels.unsqueeze(-1), True)
        return logits.masked_fill(~there, out_of(logits))

    def loss(self, batch: Batch, local: Local) -> Terms:
        above = super().loss(batch, local)
        if self.options.loss == "cross-entropy":
            return above
        whole = above["cross_entropy"]
        term = whole if isinstance(whole, Term) else Term(whole)  # whose weight stays
        printed = replace(term, values=lambda: printed_loss(self.logits(batch, local), batch.labels))
        return {**above, "cross_entropy": printed}


def printed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-log(exp(a_y) / sum over the other classes of exp(a_k)) of each sample; 0 where there is no other class."""
    true = labels.unsqueeze(-1)
    others = logits.scatter(-1, true, out_of(logits))
    values = others.logsumexp(dim=-1) - logits.gather(-1, true).squeeze(-1)
    return torch.where(others.amax(dim=-1) > out_of(logits) / 2, values, torch.zeros_like(values))


def out_of(logits: Tensor) -> float:
    """A logit whose class is out of the softmax; finite, so that its differences are numbers."""
    return torch.finfo(logits.dtype).min / 2
