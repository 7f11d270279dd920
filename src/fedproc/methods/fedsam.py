"""FedSAM (Qu et al. 2022; Caldarola et al. 2022): clients look for flat minima; MoFedSAM remembers the last round."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.merges import effective_steps
from fedproc.methods.method import Answer, Local, Tensors


class Options(method.Options):
    radius: float = Field(0.1, ge=0, description="how far uphill the gradient that counts is taken")
    local: float = Field(
        1.0, gt=0, le=1, description="the gradient's share of a step; the rest is the last round's direction (MoFedSAM)"
    )


class FedSAM(FedAvg):
    """The gradient of a step is taken at w + radius g/|g|, g the batch's gradient at w. Of MoFedSAM it counts `local`,
    and (1 - local) the mean gradient along which the last round's clients went.
    """

    name: ClassVar[str] = "fedsam"
    summary: ClassVar[str] = "gradients taken uphill, for flat minima (Qu et al. 2022; Caldarola et al. 2022)"
    family: ClassVar[str] = "client drift"
    options_type: ClassVar[type[method.Options]] = Options
    additive: ClassVar[bool] = True
    options: Options

    @classmethod
    def unprotected(cls, options: method.Options) -> str | None:
        if getattr(options, "local", 1.0) < 1:
            return f"its last direction goes by the clients' steps, which stay hidden; take --{cls.name}.local 1"
        return super().unprotected(options)

    @classmethod
    def needs_sgd(cls, options: method.Options) -> str | None:
        above = super().needs_sgd(options)
        if getattr(options, "local", 1.0) == 1:
            return above
        return above or "with local below 1 it reads the last round's direction off moves by SGD"

    # the server's half, which has nothing to do where the gradient alone counts

    def first_state(self, params: int) -> Tensors:
        above = super().first_state(params)
        return above if self.options.local == 1 else {**above, "slope": torch.zeros(params, dtype=self.client.dtype)}

    def send(self, state: Tensors) -> Tensors:
        above = super().send(state)
        return above if self.options.local == 1 else {**above, "slope": state["slope"]}

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        above = super().collect(state, sums, answer)
        if self.options.local == 1:
            return above
        length = float(effective_steps(torch.tensor(answer.steps), self.client.momentum)) * answer.settings["lr"]
        slope = sums["slope"] if "slope" in sums else torch.zeros_like(state["slope"])
        slope = slope.add(answer.sent["params"] - answer.tensors["params"], alpha=answer.share / length)
        return {**above, "slope": slope}

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        above = super().receive(state, sums)
        return {**above, "slope": sums["slope"]} if "slope" in sums else above

    # the client's half

    def displace(self, gradient: Tensor, local: Local) -> Tensor | None:
        length = gradient.norm(dim=-1, keepdim=True)
        return self.options.radius * gradient / torch.where(length > 0, length, torch.ones_like(length))

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        share = self.options.local
        if share == 1:
            return super().correct(gradient, local)
        return super().correct(share * gradient + (1 - share) * local.sent["slope"], local)
