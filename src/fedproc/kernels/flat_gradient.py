"""The gradient of flat parameters (L, P), whose parts kernels write where they belong.

Without this each layer's gradient is a tensor of its own, and all are copied together after a step. In a step that is
being captured, weight gradients are formed aside, on a stream of their own: the backward pass of the layer before needs
the gradient of the inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedproc.kernels import forks

A = TypeVar("A")

_open: dict[int, FlatGradient] = {}  # by the address of the parameters, while a backward pass is under way


class FlatGradient:
    """The gradient (L, P) of `params` (L, P), in one piece of memory that every backward pass fills anew."""

    def __init__(self, params: Tensor) -> None:
        self._params, self._whole = params, torch.empty_like(params)
        self._given: set[int] = set()  # places that were asked for in this pass
        self._untouched: set[int] = set()  # of these, what came back as it was: nobody else used the weights
        self._aside: tuple[torch.cuda.Stream, list[Tensor]] | None = None  # and what is read there

    def split(self, params: Tensor, sizes: list[int], dim: int) -> tuple[Tensor, ...]:
        """`torch.split` of the parameters along their last axis."""
        assert params is self._params and dim == -1
        parts: tuple[Tensor, ...] = _Parts.apply(params, sizes, self)
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
            if self._aside is not None:  # a capture with open branches cannot end
                torch.cuda.current_stream().wait_stream(self._aside[0])
                self._aside = None
        return gradient

    def together(self, sizes: list[int], parts: tuple[Tensor | None, ...]) -> Tensor:
        """The gradient of these parts: those that lie where they belong stay there."""
        places, before = self._whole.split(sizes, dim=-1), self._untouched
        first = int(self._params.storage_offset())
        self._untouched = set()
        strays = []
        for place, part in zip(places, parts, strict=True):
            if part is not None and part.data_ptr() == place.data_ptr() and part.stride() == place.stride():
                self._untouched.add(first + int(place.storage_offset()))
            else:
                strays.append((place, part))
        if self._aside is not None and before - self._untouched:
            raise RuntimeError("weights that nobody but their layer used are used elsewhere in a later step")
        if len(strays) == len(places):  # a network of other layers than ours: one copy for all
            return torch.cat([torch.zeros_like(place) if part is None else part for place, part in strays], dim=-1)
        for place, part in strays:
            if part is None:
                place.zero_()
            else:
                place.copy_(part)
        return self._whole

    def aside(self, weights: Tensor, function: Callable[[], A], reads: tuple[Tensor, ...]) -> A:
        """What forms the gradient of these weights: aside where a step is captured and nobody else uses them, as the
        steps before it showed; what it reads is kept until all is done.
        """
        here = int(weights.storage_offset())
        if here not in self._untouched or here in self._given or not forks.possible():
            return function()
        main = torch.cuda.current_stream()
        if self._aside is None:
            self._aside = torch.cuda.Stream(), []
        side, kept = self._aside
        kept += reads
        side.wait_stream(main)
        with torch.cuda.stream(side):
            return function()

    def place(self, weights: Tensor) -> Tensor | None:
        """Where the gradient of these weights, a part of the parameters, belongs; None if somebody was told before, as
        autograd then adds the two up.
        """
        at = int(weights.storage_offset())
        if at in self._given:
            return None
        self._given.add(at)
        return self._whole.as_strided(weights.shape, weights.stride(), at - int(self._params.storage_offset()))


def place_for(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for the gradient of weights (L, ...), contiguous in each lane; lanes may lie apart."""
    of = _open.get(weights.untyped_storage().data_ptr())
    if of is not None and weights.dtype == dtype and weights[0].is_contiguous():
        place = of.place(weights)
        if place is not None:
            return place
    return torch.empty(weights.shape, dtype=dtype, device=weights.device)


def aside(weights: Tensor, function: Callable[[], A], *reads: Tensor) -> A:
    """Form the gradient of weights (L, ...), which nobody needs before the pass is over."""
    of = _open.get(weights.untyped_storage().data_ptr())
    return function() if of is None else of.aside(weights, function, reads)


class _Parts(torch.autograd.Function):
    """Flat parameters cut into parts, and their gradients put together."""

    @staticmethod
    def forward(ctx: Any, params: Tensor, sizes: list[int], of: FlatGradient) -> tuple[Tensor, ...]:
        ctx.sizes, ctx.of = sizes, of
        ctx.set_materialize_grads(False)
        return torch.split(params, sizes, dim=-1)

    @staticmethod
    def backward(ctx: Any, *parts: Tensor | None) -> tuple[Tensor, None, None]:
        return ctx.of.together(ctx.sizes, parts), None, None
