"""L copies of a network's state behind one module, carried through by vmap."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedproc import kernels
from fedproc.kernels import cpu
from fedproc.kernels.flat_gradient import FlatGradient
from fedproc.kernels.simple_cnn import Pass, SimpleCnn, Sizes, compiled
from fedproc.lanes.local import Descend, nothing
from fedproc.lanes.setting import Setting
from fedproc.lanes.summed import Summed
from fedproc.protocol.weights import Weights


class StackedNet:
    """Weights (L, P), (L, F), (L, C). Where the whole network has kernels, autograd sees the losses alone."""

    def __init__(self, setting: Setting, weights: Weights) -> None:
        self.module = copy.deepcopy(setting.network).to(setting.device)
        self.weights = Weights(weights.params.requires_grad_(), weights.buffers, weights.counters)
        self._layout = setting.layout
        self._short = kernels.precision() == "bf16" and setting.device.type == "cuda"
        self._summed = Summed()
        self._whole = _kernels_of(setting)
        with_kernels = self._whole is not None or kernels.usable(self.weights.params)
        self._flat = FlatGradient(self.weights.params) if with_kernels else None
        self._last: Pass | None = None  # through the whole network's kernels, for the way back
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
        if trained:
            self._last = last
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
            total = self._summed(total)
            if self._flat is not None:
                return self._flat.of(total)
            (gradient,) = torch.autograd.grad(total, self.weights.params)
        return gradient

    @property
    def descend(self) -> Descend | None:
        return None if self._whole is None else self._descended

    def _descended(
        self, by_z: Tensor | None, by_logits: Tensor | None, beside: Callable[[], None] = nothing, /
    ) -> Tensor:
        assert self._whole is not None and self._flat is not None and self._last is not None
        last, self._last = self._last, None
        self._whole.backward(last, by_z, by_logits, self._flat.whole, beside)
        return self._flat.whole

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
