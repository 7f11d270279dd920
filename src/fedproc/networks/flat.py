"""Where each named tensor of a network lies in the three flat vectors of its weights.

P trainable parameters, F other float values (running statistics, frozen parameters), C integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from fedproc.protocol.weights import Shared, Weights

Entry = tuple[str, tuple[int, ...]]
Split = Callable[[Tensor, list[int], int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Layout:
    """Which named tensor of a module lies where in the flat vectors.

    `channels_last`: the weights of convolutions lie with their input channels last, which suits GPUs.
    """

    params: tuple[Entry, ...]
    buffers: tuple[Entry, ...]
    counters: tuple[Entry, ...]
    channels_last: bool = False
    layers: tuple[tuple[str, str], ...] = ()  # the type of the layer that each tensor belongs to

    @classmethod
    def of(cls, module: nn.Module, channels_last: bool = False) -> Layout:
        persistent = set(module.state_dict())
        params: list[Entry] = []
        buffers: list[Entry] = []
        counters: list[Entry] = []
        for name, parameter in module.named_parameters():
            entry = (name, tuple(parameter.shape))
            (params if parameter.requires_grad else buffers).append(entry)
        for name, buffer in module.named_buffers():
            if name in persistent and buffer.is_floating_point():
                buffers.append((name, tuple(buffer.shape)))
            elif name in persistent and buffer.dtype == torch.int64:
                counters.append((name, tuple(buffer.shape)))
            elif name in persistent:
                raise ValueError(
                    f"its buffer {name} is {str(buffer.dtype).removeprefix('torch.')}: expected float or int64 "
                    "numbers, which travel with the weights; a constant can be registered with persistent=False"
                )
        names = [name for name, _ in (*params, *buffers, *counters)]
        layers = tuple((name, type(module.get_submodule(name.rpartition(".")[0])).__name__) for name in names)
        return cls(tuple(params), tuple(buffers), tuple(counters), channels_last, layers)

    def shared(self, personal: Callable[[str, tuple[int, ...], str], bool]) -> Shared | None:
        """Where the tensors lie that are not `personal`, by name, shape and layer; None where that is everywhere."""
        layers, chosen, any_personal = dict(self.layers), [], False
        for part in self._parts():
            places, first = [torch.zeros(0, dtype=torch.int64)], 0
            for name, shape in part:
                if personal(name, shape, layers[name]):
                    any_personal = True
                else:
                    places.append(torch.arange(first, first + prod(shape)))
                first += prod(shape)
            chosen.append(torch.cat(places))
        return Shared(*chosen) if any_personal else None

    @property
    def sizes(self) -> tuple[int, int, int]:
        """P, F and C."""
        return tuple(sum(prod(shape) for _, shape in part) for part in self._parts())  # type: ignore[return-value]

    def span(self, prefix: str) -> slice:
        """Where the parameters whose names begin with `prefix` lie; they are adjacent."""
        ends = [0]
        for _, shape in self.params:
            ends.append(ends[-1] + prod(shape))
        chosen = [place for place, (name, _) in enumerate(self.params) if name.startswith(prefix)]
        return slice(ends[chosen[0]], ends[chosen[-1] + 1])

    def _parts(self) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]:
        return self.params, self.buffers, self.counters

    def read(self, module: nn.Module) -> Weights:
        """A copy of the module's present state."""
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        device = next(iter(state.values())).device
        dtype = next(module.parameters()).dtype
        flat = []
        for part, kind in zip(self._parts(), (dtype, dtype, torch.int64), strict=True):
            pieces = [self._flat(state[name].detach()) for name, _ in part]
            flat.append(torch.cat(pieces) if pieces else torch.zeros(0, dtype=kind, device=device))
        return Weights(*flat)

    def named(self, weights: Weights, split: Split | None = None) -> dict[str, Tensor]:
        """The tensors by name, as views of `weights` with its leading axes; `split` cuts the parameters."""
        named: dict[str, Tensor] = {}
        for part, flat in zip(self._parts(), (weights.params, weights.buffers, weights.counters), strict=True):
            cut = split if split is not None and flat is weights.params else torch.split
            pieces = cut(flat, [prod(shape) for _, shape in part], -1) if part else ()
            for (name, shape), piece in zip(part, pieces, strict=True):
                named[name] = self._shaped(piece, (*flat.shape[:-1], *shape), len(shape))
        return named

    def write(self, flat: Tensor, params: Sequence[Tensor]) -> None:
        """Copy the parameters, or what has their shapes, into a flat vector (P,); they may be of several dtypes."""
        places = torch.split(flat, [prod(shape) for _, shape in self.params])
        pieces = [self._flat(tensor) for tensor in params]
        for dtype in {piece.dtype for piece in pieces}:
            chosen = [at for at, piece in enumerate(pieces) if piece.dtype == dtype]
            torch._foreach_copy_([places[at] for at in chosen], [pieces[at] for at in chosen])

    def _flat(self, tensor: Tensor) -> Tensor:
        return (tensor.movedim(1, -1) if self.channels_last and tensor.dim() == 4 else tensor).reshape(-1)

    def _shaped(self, piece: Tensor, shape: tuple[int, ...], dims: int) -> Tensor:
        if not self.channels_last or dims != 4:
            return piece.view(shape)
        *lead, channels, height, width = shape
        return piece.view(*lead, height, width, channels).movedim(-1, -3)

    def bind(self, module: nn.Module, weights: Weights) -> None:
        """Make the module's tensors views of `weights`: writing to one writes to the other."""
        parameters = dict(module.named_parameters())
        for name, view in self.named(weights).items():
            if name in parameters:
                parameters[name].data = view
            else:
                owner, _, leaf = name.rpartition(".")
                module.get_submodule(owner)._buffers[leaf] = view
