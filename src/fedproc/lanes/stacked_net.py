"""L copies of a network's state behind one module, carried through by vmap."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedproc import kernels
from fedproc.kernels import cpu
from fedproc.kernels.flat_gradient import FlatGradient
from fedproc.kernels.simple_cnn import Pass, SimpleCnn, Sizes, compiled
from fedproc.lanes.setting import Setting
from fedproc.protocol.weights import Weights


@dataclass(frozen=True)
class _Leaves:
    """Where autograd begins after a pass through the whole network's kernels: it sees the losses alone."""

    last: Pass
    z: Tensor
    logits: Tensor


class StackedNet:
    """Weights (L, P), (L, F), (L, C)."""

    descend = None

    def __init__(self, setting: Setting, weights: Weights) -> None:
        self.module = copy.deepcopy(setting.network).to(setting.device)
        self.weights = Weights(weights.params.requires_grad_(), weights.buffers, weights.counters)
        self._layout = setting.layout
        self._short = kernels.precision() == "bf16" and setting.device.type == "cuda"
        self._slope: Tensor | None = None
        self._whole = _kernels_of(setting)
        with_kernels = self._whole is not None or kernels.usable(self.weights.params)
        self._flat = FlatGradient(self.weights.params) if with_kernels else None
        self._leaves: _Leaves | None = None
        self._call: Callable[..., Any] = vmap(self._one)
        self._call_without_mask: Callable[..., Any] = vmap(self._one_without_mask)

    def _one(self, named: dict[str, Tensor], images: Tensor, mask: Tensor) -> Any:
        return functional_call(self.module, named, (images, mask))

    def _one_without_mask(self, named: dict[str, Tensor], images: Tensor) -> Any:
        return functional_call(self.module, named, (images, None))

    def outputs(self, weights: Weights, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """z (L, B, Q) and logits (L, B, K) under these weights; statistics that batch-norm notes go into them."""
        trained = weights is self.weights and torch.is_grad_enabled()
        if self._whole is not None and (trained or not torch.is_grad_enabled()):
            return self._through(self._whole, weights.params.detach(), images, trained)
        named = self._layout.named(weights, self._flat.split if trained and self._flat is not None else None)
        with cpu.torch_only(), torch.autocast("cuda", torch.bfloat16, enabled=self._short, cache_enabled=False):
            if mask is None:
                z, logits = self._call_without_mask(named, images)
            else:
                z, logits = self._call(named, images, mask)
        return z.to(weights.params.dtype), logits.to(weights.params.dtype)

    def _through(self, whole: SimpleCnn, params: Tensor, images: Tensor, trained: bool) -> tuple[Tensor, Tensor]:
        z, logits, last = whole.forward(params, images, keep=trained)
        if last is not None:
            self._leaves = _Leaves(last, z.requires_grad_(), logits.requires_grad_())
        return z, logits

    def frozen(self, weights: Weights, images: Tensor) -> tuple[Tensor, Tensor]:
        training = self.module.training
        self.module.eval()
        with torch.no_grad():
            z, logits = self.outputs(weights, images, None)
        self.module.train(training)
        return z, logits

    def forward(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is None:
            mask = torch.ones(images.shape[:2], dtype=torch.bool, device=images.device)
        return self.outputs(self.weights, images, mask)

    def gradient(self, total: Tensor) -> Tensor:
        with torch.enable_grad():
            total = _Sum.apply(total, self._ones(total))  # type: ignore[no-untyped-call]
            if self._whole is not None and self._flat is not None:
                assert self._leaves is not None
                leaves, self._leaves = self._leaves, None
                of_z, of_logits = torch.autograd.grad(total, (leaves.z, leaves.logits), allow_unused=True)
                self._whole.backward(leaves.last, of_z, of_logits, self._flat.whole)
                return self._flat.whole
            if self._flat is not None:
                return self._flat.of(total)
            (gradient,) = torch.autograd.grad(total, self.weights.params)
        return gradient

    def _ones(self, total: Tensor) -> Tensor:
        """The slope of the lanes' sum, made once."""
        if self._slope is None or self._slope.shape != total.shape:
            self._slope = torch.ones_like(total)
        return self._slope

    def train(self, mode: bool) -> None:
        self.module.train(mode)


def _kernels_of(setting: Setting) -> SimpleCnn | None:
    """The kernels of the whole network, where there are some for it."""
    spec = setting.spec
    if not kernels.usable(torch.empty(0, dtype=spec.dtype, device=setting.device)):
        return None
    if spec.name != "simple-cnn" or spec.normalize_z or kernels.precision() == "bf16":
        return None
    sizes = Sizes.of(spec.channels, spec.side, spec.classes, setting.layout.params)
    return compiled(sizes, kernels.precision(), torch.cuda.current_device())


class _Sum(torch.autograd.Function):
    """Stands for the sum of all lanes, whose slope is handed in. A gradient given to torch.autograd.grad has it load
    its symbolic shapes, which take longer to import than all of fedproc.
    """

    @staticmethod
    def forward(ctx: Any, total: Tensor, slope: Tensor) -> Tensor:
        ctx.save_for_backward(slope)
        return total.detach()[:1]

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return slope, None
