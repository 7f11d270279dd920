"""What a network costs: operations and stored values of one forward pass, which decide how clients share a device."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedproc.networks.network import Network

BY_WEIGHTS = (F.conv1d, F.conv2d, F.conv3d, F.linear)
PRODUCTS = (torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.__matmul__)


@dataclass(frozen=True)
class Cost:
    """Per image: floating point operations of the forward pass, and output values of all layers."""

    operations: float
    values: float


class Counter(TorchFunctionMode):
    """Adds up the operations of convolutions and matrix products. (torch's own counter takes seconds to import.)"""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func in BY_WEIGHTS:
            self.operations += 2 * output.numel() * args[1][0].numel()
        elif func in PRODUCTS:
            self.operations += 2 * output.numel() * args[0].shape[-1]
        return output


def cost(network: Network, channels: int, side: int) -> Cost:
    """Counted over a pass of two black images on the CPU."""
    module = copy.deepcopy(network).cpu().double().eval()  # in float64 all layers are torch's, which are counted
    values = 0

    def note(layer: nn.Module, given: object, output: object) -> None:
        nonlocal values
        values += output.numel() if isinstance(output, Tensor) else 0

    for layer in module.modules():
        if not list(layer.children()):
            layer.register_forward_hook(note)
    counter = Counter()
    with torch.no_grad(), counter:
        module(torch.zeros(2, channels, side, side, dtype=torch.float64))
    return Cost(counter.operations / 2, values / 2)
