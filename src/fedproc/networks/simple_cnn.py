"""The paper's simple CNN: two 5x5 convolutions with 2x2 max pooling, two fully connected layers."""

from __future__ import annotations

from torch import nn

FEATURES = 84


def simple_cnn(channels: int, side: int) -> nn.Module:
    """Encoder from (B, channels, side, side) to (B, 84); SPEC gives 32x32 colour and 28x28 grey."""
    reduced = ((side - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * reduced * reduced, 120),
        nn.ReLU(),
        nn.Linear(120, FEATURES),
        nn.ReLU(),
    )
