"""Server steps: from the round's start and the merged vector to the next round's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

Kept = Mapping[str, Tensor]
ServerStep = Callable[[Tensor, Tensor, Kept], tuple[Tensor, Kept]]


def replace(start: Tensor, merged: Tensor, kept: Kept) -> tuple[Tensor, Kept]:
    """The merged vector is the new model."""
    return merged, kept


SERVER_STEPS: dict[str, ServerStep] = {"replace": replace}
