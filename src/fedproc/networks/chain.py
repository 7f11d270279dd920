"""A network that is a plain chain of small layers, sent forwards and backwards by hand on a CPU core.

With batches of ten a step of the simple CNN is so short that autograd and modules keeping their books are a quarter of
it. Here autograd sees the losses alone, from z and logits on; the products are those of torch's own gradients.
Shapes: B batch, K classes, Q features.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedproc.kernels import cpu
from fedproc.networks.layers import ConvReluPool, Linear
from fedproc.networks.network import Network
from fedproc.prototypes import unit


@dataclass(frozen=True)
class _Pass:
    """What the way back needs: of each layer what entered and what it gave (of a convolution which places won), and
    where autograd begins. `raw` is z before it is given length 1, where it is.
    """

    entered: list[Tensor]
    gave: list[Tensor]
    raw: Tensor
    unit_z: Tensor | None
    z: Tensor
    logits: Tensor


class Chain:
    """A network's layers in their order, whose gradients are written into their parameters' `grad`."""

    def __init__(self, network: Network, layers: list[ConvReluPool | Linear]) -> None:
        self._layers, self._classifier, self._normalize = layers, network.classifier, network.normalize_z
        self._last: _Pass | None = None

    @classmethod
    def of(cls, network: Network) -> Chain | None:
        """None where the encoder is anything else than our own small layers, one after the other."""
        if type(network.encoder) is not nn.Sequential:
            return None
        layers: list[ConvReluPool | Linear] = []
        for layer in (*network.encoder, *network.head):
            if type(layer) is Linear or (type(layer) is ConvReluPool and layer.kernel_size[0] <= cpu.MOST_SIDE):
                layers.append(layer)
            elif type(layer) is not nn.Flatten:
                return None
        return cls(network, layers)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, Q) and logits (B, K), of which the loss is to be made."""
        entered, gave = [], []
        with torch.no_grad():
            x = images
            for layer in self._layers:
                x = x if isinstance(layer, ConvReluPool) else x.flatten(1)
                entered.append(x)
                if isinstance(layer, ConvReluPool):
                    x, won = cpu.conv_relu_pool_won(x, layer.weight, _bias(layer))
                    gave.append(won)
                else:
                    x = torch.addmm(layer.bias, x, layer.weight.t())
                    gave.append(x.relu_() if layer.relu else x)
        unit_z = unit(x.requires_grad_()) if self._normalize else None
        z = (x if unit_z is None else unit_z).detach().requires_grad_()
        with torch.no_grad():
            logits = torch.addmm(self._classifier.bias, z, self._classifier.weight.t())
        self._last = _Pass(entered, gave, x, unit_z, z, logits.requires_grad_())
        return z, logits

    def backward(self, total: Tensor) -> None:
        """The gradient of a loss that was made of the last z and logits, to all parameters."""
        assert self._last is not None
        last, self._last = self._last, None
        g, of_logits = torch.autograd.grad(total, (last.z, last.logits), allow_unused=True)
        with torch.no_grad():
            if of_logits is None:
                for parameter in self._classifier.parameters():
                    _grad(parameter).zero_()
            else:
                through = _linear_backward(self._classifier, last.z, of_logits)
                g = through if g is None else g + through
        if last.unit_z is not None:
            (g,) = torch.autograd.grad(last.unit_z, last.raw, g)
        with torch.no_grad():
            for place in reversed(range(len(self._layers))):
                layer, x, y = self._layers[place], last.entered[place], last.gave[place]
                if isinstance(layer, Linear):
                    g = _linear_backward(layer, x, torch.ops.aten.threshold_backward(g, y, 0) if layer.relu else g)
                    continue
                into = (_grad(layer.weight), _grad(_bias(layer)))
                of_x = cpu.conv_relu_pool_backward(x, layer.weight, g.view(y.shape), y, *into, needs_x=place > 0)
                g = g if of_x is None else of_x


def _linear_backward(layer: Linear, x: Tensor, g: Tensor) -> Tensor:
    """Gradients of weights and bias to their places; gives that of x."""
    torch.mm(g.t(), x, out=_grad(layer.weight))
    torch.sum(g, 0, out=_grad(layer.bias))
    return g.mm(layer.weight)


def _bias(layer: ConvReluPool) -> Tensor:
    assert layer.bias is not None
    return layer.bias


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
