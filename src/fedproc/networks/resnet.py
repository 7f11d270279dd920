"""ResNets for small images (He et al. 2016): a 3x3 stem of stride 1 and no max pool."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedproc.networks.batch_norm import norm_relu

Norm = Callable[[int], nn.Module]
NARROW = 16  # channels


def group_norm(channels: int) -> nn.Module:
    """As many groups as divide the channels, 32 at most and two channels per group at least."""
    groups = max(g for g in range(1, max(1, min(32, channels // 2)) + 1) if channels % g == 0)
    return nn.GroupNorm(groups, channels)


NORMS: dict[str, Norm] = {"batch": nn.BatchNorm2d, "group": group_norm}


class Convolution(nn.Conv2d):
    """Without bias. Weights come with channels last, which suits GPUs and CPUs; where there are few channels and a
    stride they are copied to the default layout on a CPU: torch 2.13's backward pass overruns memory (8 channels, odd
    batch, several threads).
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> None:
        super().__init__(inputs, outputs, size, stride, padding, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.is_cuda or self.in_channels >= NARROW or self.stride == (1, 1):
            return super().forward(input)
        x, weight = (tensor.clone(memory_format=torch.contiguous_format) for tensor in (input, self.weight))
        return F.conv2d(x, weight, None, self.stride, self.padding)


def _shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(Convolution(inputs, outputs, 1, stride), norm(outputs))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = Convolution(inputs, width, 3, stride, 1)
        self.norm1 = norm(width)
        self.conv2 = Convolution(width, width, 3, 1, 1)
        self.norm2 = norm(width)
        self.shortcut = _shortcut(inputs, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = norm_relu(self.norm1, self.conv1(x))
        return norm_relu(self.norm2, self.conv2(y), self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride) and 1x1 convolutions, and a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = Convolution(inputs, width, 1)
        self.norm1 = norm(width)
        self.conv2 = Convolution(width, width, 3, stride, 1)
        self.norm2 = norm(width)
        self.conv3 = Convolution(width, outputs, 1)
        self.norm3 = norm(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = norm_relu(self.norm1, self.conv1(x))
        y = norm_relu(self.norm2, self.conv2(y))
        return norm_relu(self.norm3, self.conv3(y), self.shortcut(x))


def _resnet(
    block: type[BasicBlock | Bottleneck], depths: tuple[int, ...], channels: int, width: int, norm: Norm
) -> nn.Module:
    layers: list[nn.Module] = [Convolution(channels, width, 3, 1, 1), norm(width), nn.ReLU()]
    inputs = width
    for stage, depth in enumerate(depths):
        for place in range(depth):
            layers.append(block(inputs, width << stage, 2 if stage and not place else 1, norm))
            inputs = block.expansion * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resnet18(channels: int, width: int, norm: str) -> nn.Module:
    """Encoder from (B, channels, H, W) to (B, 8 * width); the usual width is 64."""
    return _resnet(BasicBlock, (2, 2, 2, 2), channels, width, NORMS[norm])


def resnet50(channels: int, width: int, norm: str) -> nn.Module:
    """Encoder from (B, channels, H, W) to (B, 32 * width); the usual width is 64."""
    return _resnet(Bottleneck, (3, 4, 6, 3), channels, width, NORMS[norm])
