"""The one thing that crosses between a client and the server: named tensors and counts.

The simulator hands it over in memory, a federation sends it over the wire (`codec`); one guard checks it in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, device

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Payload:
    """Named tensors and named counts."""

    tensors: Tensors
    counts: Mapping[str, int] = field(default_factory=dict)

    def to(self, device: device) -> Payload:
        """With its tensors on this device."""
        return Payload({name: tensor.to(device) for name, tensor in self.tensors.items()}, self.counts)

    @property
    def bytes(self) -> int:
        """Its size on the wire, names and framing aside."""
        return self.bytes_without(frozenset())

    def bytes_without(self, names: frozenset[str]) -> int:
        """Its size without the tensors of these names."""
        sizes = (t.numel() * t.element_size() for name, t in self.tensors.items() if name not in names)
        return sum(sizes) + 8 * len(self.counts)
