"""Batch normalisation that can leave padded samples out of its statistics, alone or under vmap.

With no mask it is torch's own batch-norm. With one, mean and variance are taken over the samples in
it, so a lane padded up to the batch size ends with the weights and running statistics of one that was not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedproc import kernels


class MaskedBatchNorm(_BatchNorm):
    """Drop-in for BatchNorm1d/2d/3d; `mask` (B,) is set by the network around each forward pass."""

    mask: Tensor | None = None

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch-norm expects (B, C, ...) input, got {tuple(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        batch_statistics = self.training or self.running_mean is None
        several = input.numel() > input.shape[1]
        if not batch_statistics or (self.mask is None and several and self.momentum is not None):
            return super().forward(input)
        return self._masked(input)

    def plain(self, input: Tensor) -> bool:
        """Whether this is ordinary training on whole batches of images in the kernel's memory layout."""
        usual = self.training and self.mask is None and self.affine and self.track_running_stats
        return usual and self.momentum is not None and kernels.usable(input) and _last(input)

    def _masked(self, input: Tensor) -> Tensor:
        shape = [-1 if axis == 1 else 1 for axis in range(input.dim())]
        axes = [axis for axis in range(input.dim()) if axis != 1]
        used = torch.ones_like(input[:, 0]) if self.mask is None else self._spread(input)
        used = used.unsqueeze(1)
        count = used.sum().clamp(min=1)
        mean = (input * used).sum(dim=axes) / count
        centred = (input - mean.view(shape)) * used
        variance = centred.square().sum(dim=axes) / count
        variance = variance + (used.sum() == 0)  # no samples: an idle lane, which must stay finite
        if self.training and self.running_mean is not None and self.running_var is not None:
            self._update_running(mean.detach(), (variance * count / (count - 1).clamp(min=1)).detach())
        output = (input - mean.view(shape)) * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output

    def _spread(self, input: Tensor) -> Tensor:
        assert self.mask is not None
        return self.mask.to(input.dtype).view(-1, *[1] * (input.dim() - 2)).expand(input[:, 0].shape)

    def _update_running(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share: float | Tensor
        share = 1.0 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        self.running_mean.copy_((1 - share) * self.running_mean + share * mean)
        self.running_var.copy_((1 - share) * self.running_var + share * variance)


def norm_relu(norm: nn.Module, input: Tensor, add: Tensor | None = None) -> Tensor:
    """relu(norm(input) + add), in one pass where kernels can."""
    if isinstance(norm, MaskedBatchNorm) and norm.plain(input) and (add is None or _last(add)):
        from fedproc.kernels import norm as kernel

        assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
        assert norm.momentum is not None
        norm.num_batches_tracked.add_(1)
        numbers = (norm.running_mean, norm.running_var, norm.momentum, norm.eps)
        return kernel.norm_relu(input, norm.weight, norm.bias, add, *numbers)
    output: Tensor = norm(input)
    return F.relu(output if add is None else output + add)


def _last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def convert(module: nn.Module) -> nn.Module:
    """`module` with every torch batch-norm layer replaced by the masked one, with the same values."""
    if isinstance(module, _BatchNorm) and not isinstance(module, (MaskedBatchNorm, nn.SyncBatchNorm)):
        masked = MaskedBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        masked._parameters, masked._buffers = module._parameters, module._buffers
        masked.train(module.training)
        return masked
    for name, child in module.named_children():
        module.add_module(name, convert(child))
    return module
