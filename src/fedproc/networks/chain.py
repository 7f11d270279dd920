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
    being.
    """

    gave: Tensor
    won: Tensor
    scratch: Tensor


@dataclass(frozen=True)
class _Pass:
    """A batch on its way back: z and logits are what its loss is made of."""

    images: Tensor
    room: _Room
    z: Tensor
    logits: Tensor


class Chain:
    """A network's layers in their order, which read flat parameters (P,) and write a flat gradient (P,)."""

    def __init__(self, layers: Sequence[cpu.Layer]) -> None:
        self._layers = (cpu.Layer * len(layers))(*layers)
        self._count = len(layers)
        self._gave = sum(layer.outputs for layer in layers)
        self._won = sum(layer.outputs for layer in layers if layer.kind == cpu.CONVOLUTION)
        self._widest = max(max(layer.inputs, layer.outputs) for layer in layers)
        self._inputs, self._features, self._classes = layers[0].inputs, layers[-1].inputs, layers[-1].outputs
        self._rooms: dict[int, _Room] = {}
        self._last: _Pass | None = None

    @classmethod
    def of(cls, network: Network, layout: Layout, channels: int, side: int) -> Chain | None:
        """For images (B, channels, side, side). None where the encoder is anything else than our own small layers, one
        after the other, where one of them stands twice, has hooks or a `forward` of its own, or where not all of their
        parameters are trained.
        """
        if type(network.encoder) is not nn.Sequential or layout.channels_last:
            return None
        modules = [each for each in (*network.encoder, *network.head) if type(each) is not nn.Flatten]
        if not all(_small(module) for module in modules) or len({*modules}) < len(modules):
            return None
        if any(_hooked(module) or "forward" in vars(module) for module in network.modules()):
            return None
        names = [name for name, _ in layout.params]
        ends = [sum(prod(shape) for _, shape in layout.params[:place]) for place in range(len(names))]
        try:
            layers = list(_layers(network, modules, dict(zip(names, ends, strict=True)), (channels, side, side)))
        except KeyError:
            return None
        gave = [channels * side * side, *(layer.outputs for layer in layers)]
        return cls(layers) if all(layer.inputs == given for layer, given in zip(layers, gave, strict=False)) else None

    def forward(self, params: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """z (B, Q) and logits (B, K), of which a loss is to be made before the next forward pass."""
        room, images = self._room(len(images)), images.contiguous()
        z, logits = torch.empty(len(images), self._features), torch.empty(len(images), self._classes)
        self._forward(params, images, room, room.won, z, logits)
        self._last = _Pass(images, room, z.requires_grad_(), logits.requires_grad_())
        return z, logits

    def outputs(self, params: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """z and logits without a gradient."""
        batch, room = len(images), self._room(min(len(images), cpu.BLOCK))
        z, logits = torch.empty(batch, self._features), torch.empty(batch, self._classes)
        self._forget(room)
        self._forward(params, images.contiguous(), room, None, z, logits)
        return z, logits

    @torch.no_grad()
    def class_sums(
        self, params: Tensor, bank: Tensor, index: Tensor, labels: Tensor, levels: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Sums (K, Q) of z by class, in float64, and counts (K), of the bank's images (C, H, W) by index (N,),
        normalised, with labels (N,). Where a linear layer gives z, it takes the sums of what enters it.
        """
        if prod(bank.shape[1:]) != self._inputs:
            raise ValueError(f"images of {tuple(bank.shape[1:])}: expected {self._inputs} values in each")
        bank = bank.contiguous()
        count, images = self._count - 1, len(index)
        last = self._layers[count - 1]
        summed = count > 1 and last.kind == cpu.LINEAR
        count -= summed
        features, some, floats = self._layers[count - 1].outputs, min(images, cpu.BLOCK), torch.float64
        sums, counts = torch.zeros(self._classes, features, dtype=floats), torch.zeros(self._classes, dtype=torch.int64)
        room = self._room(some)
        self._forget(room)
        shape = bank.shape[1:]
        memory = (torch.empty(some, *shape), room.gave, torch.empty(some, features), room.scratch, sums, counts)
        layers, taken = ctypes.addressof(self._layers), (bank, index.contiguous(), labels.contiguous(), *levels)
        cpu.call("chain_class_sums", layers, params, *taken, *memory, count, images, self._classes, *shape)
        if summed:
            weight = params[last.weight : last.weight + last.inputs * last.outputs].view(last.outputs, last.inputs)
            bias = params[last.bias : last.bias + last.outputs].to(floats)
            sums = sums @ weight.to(floats).t() + counts.unsqueeze(-1) * bias
        return sums, counts

    def backward(self, params: Tensor, gradient: Tensor, by_z: Tensor | None, by_logits: Tensor | None) -> None:
        """Writes the gradient of a loss by those of the last z and logits; None: it does not depend on them."""
        last, self._last = self._waiting(), None
        slopes = [None if slope is None else slope.contiguous() for slope in (by_logits, by_z)]
        memory = (last.room.gave, last.room.won, last.z, *slopes, gradient, last.room.scratch)
        sizes = (self._count, self._widest, len(last.images))
        cpu.call("chain_backward", ctypes.addressof(self._layers), params, last.images, *memory, *sizes)

    def gradient(self, params: Tensor, gradient: Tensor, total: Tensor) -> None:
        """The same of a loss that was made of the last z and logits."""
        last = self._waiting()
        slopes = torch.autograd.grad(total, (last.z, last.logits), allow_unused=True)
        if all(slope is None for slope in slopes):
            raise RuntimeError("the loss was not made of the last forward pass")
        self.backward(params, gradient, *slopes)

    def _forget(self, room: _Room) -> None:
        """The pass whose memory is used again."""
        if self._last is not None and self._last.room is room:
            self._last = None

    def _waiting(self) -> _Pass:
        if self._last is None:
            raise RuntimeError("no forward pass waits for its gradient: it had one, or its memory was used again")
        return self._last

    def _forward(
        self, params: Tensor, images: Tensor, room: _Room, won: Tensor | None, z: Tensor, logits: Tensor
    ) -> None:
        if images.numel() != len(images) * self._inputs:
            raise ValueError(f"images of {tuple(images.shape[1:])}: expected {self._inputs} values in each")
        memory = (room.gave, won, z, logits, room.scratch)
        layers = ctypes.addressof(self._layers)
        cpu.call("chain_forward", layers, params, images, *memory, self._count, len(images))

    def _room(self, batch: int) -> _Room:
        if batch not in self._rooms:
            if len(self._rooms) == MOST_ROOMS:
                self._rooms.clear()
            self._rooms[batch] = _Room(
                gave=torch.empty(batch * self._gave),
                won=torch.empty(max(1, batch * self._won), dtype=torch.int8),  # none at all would be no gradient for C
                scratch=torch.empty(2 * self._widest * (batch + cpu.WIDEST)),
            )
        return self._rooms[batch]


def _small(module: nn.Module) -> bool:
    return type(module) is Linear or (type(module) is ConvReluPool and module.kernel_size[0] <= cpu.MOST_SIDE)


def _hooked(module: nn.Module) -> bool:
    kinds = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(kinds)


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
            shape, side = (module.in_channels, *shape[1:]), module.kernel_size[0]
            pooled = (module.out_channels, *((each - side + 1) // 2 for each in shape[1:]))
            sizes = (*shape, module.out_channels, side)
            yield cpu.Layer(cpu.CONVOLUTION, prod(shape), prod(pooled), *at(module), *sizes)
            shape = pooled
    if network.normalize_z:
        yield cpu.Layer(cpu.UNIT, network.classifier.in_features, network.classifier.in_features)
    yield linear(network.classifier)
