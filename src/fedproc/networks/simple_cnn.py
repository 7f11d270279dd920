"""The paper's simple CNN: two 5x5 convolutions with 2x2 max pooling, two fully connected layers."""

from __future__ import annotations

from torch import nn

from fedproc.networks.layers import ConvReluPool, Linear

FEATURES = 84


def simple_cnn(channels: int, side: int) -> nn.Module:
    """Encoder from (B, channels, side, side) to (B, 84); SPEC gives 32x32 colour and 28x28 grey."""
    reduced = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        ConvReluPool(channels, 6, 5),
        ConvReluPool(6, 16, 5),
        nn.Flatten(),
        Linear(16 * reduced * reduced, 120, relu=True, hidden=True),
        Linear(120, FEATURES, relu=True, hidden=True),
    )
