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


class Adaptive:
    """m <- beta m + (1 - beta) D and w <- w^t + lr m / (sqrt(v) + tau): D = merged - w^t, and v measures D^2 in each
    coordinate. v starts at `first_v`, and nothing is corrected for that.
    """

    def first_state(self, params: Tensor) -> Tensors:
        return {"m": torch.zeros_like(params), "v": torch.zeros_like(params), "steps": params.new_zeros(())}

    def step(
        self, start: Tensor, merged: Tensor, state: Tensors, numbers: Mapping[str, float]
    ) -> tuple[Tensor, Tensors]:
        move, beta = merged - start, numbers["beta"]
        m = beta * state["m"] + (1 - beta) * move
        before = torch.where(state["steps"] > 0, state["v"], numbers.get("first_v", 0.0))
        v = self.measured(before, move.square(), numbers.get("beta2", 0.99))
        params = start + numbers["lr"] * m / (v.sqrt() + numbers.get("tau", 1e-3))
        return params, {"m": m, "v": v, "steps": state["steps"] + 1}

    def measured(self, v: Tensor, square: Tensor, beta2: float) -> Tensor:
        """The new v."""
        raise TypeError(f"{type(self).__name__} must say what v is")


class Adagrad(Adaptive):
    """FedAdagrad: v is the sum of the squares so far."""

    def measured(self, v: Tensor, square: Tensor, beta2: float) -> Tensor:
        return v + square


class Adam(Adaptive):
    """FedAdam: v is their running mean."""

    def measured(self, v: Tensor, square: Tensor, beta2: float) -> Tensor:
        return beta2 * v + (1 - beta2) * square


class Yogi(Adaptive):
    """FedYogi: v moves towards the squares by no more than they are."""

    def measured(self, v: Tensor, square: Tensor, beta2: float) -> Tensor:
        return v - (1 - beta2) * square * (v - square).sign()


SERVER_STEPS: dict[str, ServerStep] = {
    "replace": Replace(),
    "momentum": Momentum(),
    "adam": Adam(),
    "yogi": Yogi(),
    "adagrad": Adagrad(),
}
