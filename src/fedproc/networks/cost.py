"""What a network costs: operations and stored values of one forward pass, which choose how clients share a device."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedproc.networks.network import Network


@dataclass(frozen=True)
class Cost:
    """Of one image: floating point operations forward, and values that its layers put out."""

    operations: float
    values: float


def cost(network: Network, channels: int, side: int) -> Cost:
    """Counted over a pass of two black images on the CPU."""
    from torch.utils.flop_counter import FlopCounterMode  # takes a second to import

    module = copy.deepcopy(network).cpu().double().eval()  # in float64 all layers are torch's, which are counted
    values = 0

    def note(layer: nn.Module, given: object, output: object) -> None:
        nonlocal values
        values += output.numel() if isinstance(output, Tensor) else 0

    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(note)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        module(torch.zeros(2, channels, side, side, dtype=torch.float64))
    return Cost(counter.get_total_flops() / 2, values / 2)
