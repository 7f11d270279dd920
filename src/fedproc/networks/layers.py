"""The layers of small networks: torch's own, or our kernels where they are usable."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedproc import kernels
from fedproc.kernels import cpu

MOST_CHANNELS = 64  # of the convolution kernel, whose tiles hold all of them
MOST_FEATURES = 1024  # of the linear kernel; larger products are torch's


class ConvReluPool(nn.Conv2d):
    """Convolution, relu, 2x2 max pooling."""

    def __init__(self, channels: int, out: int, side: int) -> None:
        super().__init__(channels, out, side)

    def forward(self, input: Tensor) -> Tensor:
        if kernels.usable(input) and max(self.in_channels, self.out_channels) <= MOST_CHANNELS:
            from fedproc.kernels.conv_pool import conv_relu_pool

            assert self.bias is not None
            return conv_relu_pool(input[None], self.weight[None], self.bias[None]).squeeze(0)
        assert self.bias is not None
        if cpu.usable(input) and cpu.convolves(input, self.weight):
            return cpu.conv_relu_pool(input, self.weight, self.bias)
        return F.max_pool2d(F.relu(super().forward(input)), 2)


class Linear(nn.Linear):
    """A linear layer, with relu where asked; a hidden one may be stored in a shorter type."""

    def __init__(self, features: int, out: int, relu: bool = False, hidden: bool = False) -> None:
        super().__init__(features, out)
        self.relu, self.hidden = relu, hidden

    def forward(self, input: Tensor) -> Tensor:
        if kernels.usable(input) and max(self.in_features, self.out_features) <= MOST_FEATURES:
            from fedproc.kernels.linear import linear

            return linear(input[None], self.weight[None], self.bias[None], self.relu, self.hidden).squeeze(0)
        output = super().forward(input)
        return F.relu(output) if self.relu else output
