"""FedRS (Li and Zhan 2021): the softmax is restricted where a client has no samples of a class."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Batch, Local


class Options(method.Options):
    alpha: float = Field(0.5, ge=0, le=1, description="what logits of classes that a client does not have count")
    graded: bool = Field(
        False, description="the authors' code: alpha + (1 - alpha) n_k / (largest n_k) instead of alpha or 1"
    )


class FedRS(FedAvg):
    """Minimises the cross-entropy of s_k logit_k: s_k is 1, and alpha for classes that the client does not have."""

    name: ClassVar[str] = "fedrs"
    summary: ClassVar[str] = "logits of classes a client does not have are scaled down (Li and Zhan 2021)"
    family: ClassVar[str] = "calibration"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def logits(self, batch: Batch, local: Local) -> Tensor:
        counts, alpha = local.class_counts, self.options.alpha
        if self.options.graded:
            scales = alpha + (1 - alpha) * counts / counts.amax(dim=-1, keepdim=True).clamp(min=1)
        else:
            scales = torch.where(counts > 0, torch.ones_like(counts), alpha)
        return super().logits(replace(batch, logits=scales.unsqueeze(-2) * batch.logits), local)
