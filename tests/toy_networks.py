"""Encoders as a person would write them, named in the tests by import path."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class BatchNormNet(nn.Module):
    """Two layers with batch-norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.linear = nn.Linear(4 * 7 * 7, 12)
        self.norm2 = nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        return self.norm2(self.linear(x.flatten(1)))


class DropoutNet(nn.Module):
    """Draws from torch's own generator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.Dropout(0.5), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class FrozenNet(nn.Module):
    """The first layer is not to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(256, 16)
        self.first.weight.requires_grad_(False)
        self.second = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x.flatten(1))))


class WrongShape(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Explodes(nn.Module):
    """Gives numbers that no weights survive."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1e30))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * self.scale * self.scale


class DropoutNet28(nn.Module):
    """Draws from torch's own generator, for images of 28 by 28."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.Dropout(0.5), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class TinyNet(nn.Module):
    """As little as trains, on images of 28 by 28."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(49, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(nn.functional.avg_pool2d(x, 4).flatten(1)))
