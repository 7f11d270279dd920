"""Server steps: from the round's start and the merged vector to the next round's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Kept = Mapping[str, Tensor]
ServerStep = Callable[[Tensor, Tensor, Kept, tuple[float, float]], tuple[Tensor, Kept]]


def replace(start: Tensor, merged: Tensor, kept: Kept, numbers: tuple[float, float]) -> tuple[Tensor, Kept]:
    """The merged vector is the new model."""
    return merged, kept


def momentum(start: Tensor, merged: Tensor, kept: Kept, numbers: tuple[float, float]) -> tuple[Tensor, Kept]:
    """FedAvgM: v <- beta v + (w^t - merged), w <- w^t - eta v."""
    beta, eta = numbers
    velocity = kept.get("server_velocity", torch.zeros_like(start))
    velocity = beta * velocity + (start - merged)
    return start - eta * velocity, {**kept, "server_velocity": velocity}


SERVER_STEPS: dict[str, ServerStep] = {"replace": replace, "momentum": momentum}
