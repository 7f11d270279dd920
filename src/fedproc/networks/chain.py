"""A network that is a plain chain of small layers, sent forwards and backwards by one call of C each, on a CPU core.

With batches of ten a step of the simple CNN is so short that modules, autograd and single products keeping their books
are most of it. Here autograd sees the losses alone, from z and logits on, and not even those whose slopes are known
(methods/known.py). Shapes: B batch, K classes, Q features, P parameters.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from fedproc.kernels import cpu
from fedproc.networks.flat import Layout
from fedproc.networks.layers import ConvReluPool, Linear
from fedproc.networks.network import Network

MOST_ROOMS = 4  # sizes of batches whose memory is kept


@dataclass(frozen=True)
class _Room:
    """Memory for a batch: what layers give, which places of convolutions' windows won, what a layer needs for the time
    being, z and logits with what they are given a gradient through.
    """

    gave: Tensor
    won: Tensor
    scratch: Tensor
    z: Tensor
    logits: Tensor


class Chain:
    """A network's layers in their order, which read flat parameters (P,) and write a flat gradient (P,)."""

    def __init__(self, layers: Sequence[cpu.Layer]) -> None:
        self._layers = (cpu.Layer * len(layers))(*layers)
        self._at, self._count = ctypes.addressof(self._layers), len(layers)
        self._gave = sum(layer.outputs for layer in layers)
        self._won = sum(layer.outputs for layer in layers if layer.kind == cpu.CONVOLUTION)
        self._widest = max(max(layer.inputs, layer.outputs) for layer in layers)
        self._inputs, self._features, self._classes = layers[0].inputs, layers[-1].inputs, layers[-1].outputs
        self._rooms: dict[int, _Room] = {}
        self._last: tuple[Tensor, _Room] | None = None  # a batch of images on its way back

    @classmethod
    def of(cls, network: Network, layout: Layout, channels: int, side: int) -> Chain | None:
        """For images (B, channels, side, side). None where the encoder is anything else than our own small layers, one
        after the other, or where not all of their parameters are trained.
        """
        if type(network.encoder) is not nn.Sequential or layout.channels_last:
            return None
        modules = [each for each in (*network.encoder, *network.head) if type(each) is not nn.Flatten]
        if not all(_small(module) for module in modules):
            return None
        names = [name for name, _ in layout.params]
        ends = [sum(prod(shape) for _, shape in layout.params[:place]) for place in range(len(names))]
        try:
            return cls(list(_layers(network, modules, dict(zip(names, ends, strict=True)), (channels, side, side))))
        except KeyError:
            return None

    def forward(self, params: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, Q) and logits (B, K), of which a loss is to be made; they last until the next forward pass."""
        room, images = self._room(len(images)), images.contiguous()
        self._forward(params, images, room, room.won, room.z, room.logits)
        self._last = images, room
        return room.z, room.logits

    def outputs(self, params: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """z and logits without a gradient."""
        batch, room = len(images), self._room(min(len(images), cpu.BLOCK))
        z, logits = torch.empty(batch, self._features), torch.empty(batch, self._classes)
        self._forward(params, images.contiguous(), room, None, z, logits)
        return z, logits

    def backward(self, params: Tensor, gradient: Tensor, by_z: Tensor | None, by_logits: Tensor | None) -> None:
        """Writes the gradient of a loss by those of the last z and logits; None: it does not depend on them."""
        assert self._last is not None
        (images, room), self._last = self._last, None
        slopes = [None if slope is None else slope.contiguous() for slope in (by_logits, by_z)]
        memory = (room.gave, room.won, room.z, *slopes, gradient, room.scratch)
        cpu.call("chain_backward", self._at, params, images, *memory, self._count, self._widest, len(images))

    def gradient(self, params: Tensor, gradient: Tensor, total: Tensor) -> None:
        """The same of a loss that was made of the last z and logits."""
        assert self._last is not None
        _, room = self._last
        self.backward(params, gradient, *torch.autograd.grad(total, (room.z, room.logits), allow_unused=True))

    def _forward(
        self, params: Tensor, images: Tensor, room: _Room, won: Tensor | None, z: Tensor, logits: Tensor
    ) -> None:
        if images.numel() != len(images) * self._inputs:
            raise ValueError(f"images of {tuple(images.shape[1:])}: expected {self._inputs} values in each")
        memory = (room.gave, won, z, logits, room.scratch)
        cpu.call("chain_forward", self._at, params, images, *memory, self._count, len(images))

    def _room(self, batch: int) -> _Room:
        if batch not in self._rooms:
            if len(self._rooms) == MOST_ROOMS:
                self._rooms.clear()
            self._rooms[batch] = _Room(
                gave=torch.empty(batch * self._gave),
                won=torch.empty(batch * self._won, dtype=torch.int8),
                scratch=torch.empty(2 * self._widest * (batch + cpu.WIDEST)),
                z=torch.empty(batch, self._features).requires_grad_(),
                logits=torch.empty(batch, self._classes).requires_grad_(),
            )
        return self._rooms[batch]


def _small(module: nn.Module) -> bool:
    return type(module) is Linear or (type(module) is ConvReluPool and module.kernel_size[0] <= cpu.MOST_SIDE)


def _layers(
    network: Network, modules: Sequence[nn.Module], places: Mapping[str, int], shape: tuple[int, ...]
) -> Iterator[cpu.Layer]:
    """The layers as C sees them; `places` says where parameters begin, by name, `shape` is an image's."""
    names = {module: name for name, module in network.named_modules()}

    def at(module: nn.Module) -> tuple[int, int]:
        return places[f"{names[module]}.weight"], places[f"{names[module]}.bias"]

    def linear(module: Linear) -> cpu.Layer:
        kind = cpu.LINEAR_RELU if module.relu else cpu.LINEAR
        return cpu.Layer(kind, module.in_features, module.out_features, *at(module))

    for module in modules:
        if isinstance(module, Linear):
            yield linear(module)
        elif isinstance(module, ConvReluPool):
            side = module.kernel_size[0]
            pooled = (module.out_channels, *((each - side + 1) // 2 for each in shape[1:]))
            sizes = (*shape, module.out_channels, side)
            yield cpu.Layer(cpu.CONVOLUTION, prod(shape), prod(pooled), *at(module), *sizes)
            shape = pooled
    if network.normalize_z:
        yield cpu.Layer(cpu.UNIT, network.classifier.in_features, network.classifier.in_features)
    yield linear(network.classifier)
