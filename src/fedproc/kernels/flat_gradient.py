"""The gradient of flat parameters (L, P), whose parts kernels write where they belong.

Without this each layer's gradient is a tensor of its own, and all are copied together after a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_open: dict[int, FlatGradient] = {}  # by the address of the parameters, while a backward pass is under way


class FlatGradient:
    """The gradient (L, P) of `params` (L, P), in one piece of memory that every backward pass fills anew."""

    def __init__(self, params: Tensor) -> None:
        self._params, self.whole = params, torch.empty_like(params)
        self._given: set[int] = set()

    def split(self, params: Tensor, sizes: list[int], dim: int) -> tuple[Tensor, ...]:
        """`torch.split` of the parameters along their last axis."""
        assert params is self._params and dim == -1
        parts: tuple[Tensor, ...] = _Parts.apply(params, sizes, self.whole)
        return parts

    def of(self, total: Tensor) -> Tensor:
        """The gradient of `total`, valid until the next pass."""
        address = self._params.untyped_storage().data_ptr()
        self._given.clear()
        _open[address] = self
        try:
            (gradient,) = torch.autograd.grad(total, self._params)
        finally:
            del _open[address]
        return gradient

    def place(self, weights: Tensor) -> Tensor | None:
        """Where the gradient of these weights, a part of the parameters, belongs; None if somebody was told before, as
        autograd then adds the two up.
        """
        at = int(weights.storage_offset())
        if at in self._given:
            return None
        self._given.add(at)
        return self.whole.as_strided(weights.shape, weights.stride(), at - int(self._params.storage_offset()))


def place_for(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for the gradient of weights (L, ...), contiguous in each lane; lanes may lie apart."""
    of = _open.get(weights.untyped_storage().data_ptr())
    if of is not None and weights.dtype == dtype and weights[0].is_contiguous():
        place = of.place(weights)
        if place is not None:
            return place
    return torch.empty(weights.shape, dtype=dtype, device=weights.device)


class _Parts(torch.autograd.Function):
    """Flat parameters cut into parts, and their gradients put together: those that lie where they belong stay there."""

    @staticmethod
    def forward(ctx: Any, params: Tensor, sizes: list[int], whole: Tensor) -> tuple[Tensor, ...]:
        ctx.sizes, ctx.whole = sizes, whole
        ctx.set_materialize_grads(False)
        return torch.split(params, sizes, dim=-1)

    @staticmethod
    def backward(ctx: Any, *parts: Tensor | None) -> tuple[Tensor, None, None]:
        places = ctx.whole.split(ctx.sizes, dim=-1)
        pairs = [pair for pair in zip(places, parts, strict=True) if not _same(*pair)]
        if len(pairs) == len(places):  # a network of other layers than ours: one copy for all
            return (
                torch.cat([torch.zeros_like(place) if part is None else part for place, part in pairs], -1),
                None,
                None,
            )
        for place, part in pairs:
            if part is None:
                place.zero_()
            else:
                place.copy_(part)
        return ctx.whole, None, None


def _same(place: Tensor, part: Tensor | None) -> bool:
    return part is not None and part.data_ptr() == place.data_ptr() and part.stride() == place.stride()
