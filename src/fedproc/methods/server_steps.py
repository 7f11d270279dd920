"""Server steps: from the round's start and the merged vector to the next round's parameters."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproc.protocol.payload import Tensors
from fedproc.protocol.server_half import ServerStep


class Replace:
    """The merged vector is the new model."""

    def first_state(self, params: Tensor) -> Tensors:
        return {}

    def step(
        self, start: Tensor, merged: Tensor, state: Tensors, numbers: Mapping[str, float]
    ) -> tuple[Tensor, Tensors]:
        return merged, state


class Momentum:
    """FedAvgM: v <- beta v + (w^t - merged), w <- w^t - lr v."""

    def first_state(self, params: Tensor) -> Tensors:
        return {"velocity": torch.zeros_like(params)}

    def step(
        self, start: Tensor, merged: Tensor, state: Tensors, numbers: Mapping[str, float]
    ) -> tuple[Tensor, Tensors]:
        velocity = numbers["beta"] * state["velocity"] + (start - merged)
        return start - numbers["lr"] * velocity, {"velocity": velocity}


SERVER_STEPS: dict[str, ServerStep] = {"replace": Replace(), "momentum": Momentum()}
