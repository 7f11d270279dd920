"""All that a client has to tell as one vector, and the mean of such vectors as an answer again.

Its parts, in this order: the move of the parameters (P); what the method returns besides, by name, times a scale; of
each class the client's mean embedding, shortened to its bound and scaled (K, Q), and whether it has the class (K), in
the same scale. So a client's whole influence is bounded by one length, and no count is in it but 0 or 1 for each class.
Shapes: P parameters, K classes, Q features, D all together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fedproc.privacy.options import PrivacyOptions
from fedproc.protocol.guard import Refused, Shapes
from fedproc.protocol.payload import Tensors

KNOWN = frozenset(
    {"params", "buffers", "counters", "losses", "class_means", "class_counts"}
)  # the rest is the method's


@dataclass(frozen=True)
class Sums:
    """The vector of a sum, cut into its parts, in the clients' own units; `means` and `held` where there are any."""

    move: Tensor
    returned: Tensors
    means: Tensor | None
    held: Tensor | None


@dataclass(frozen=True)
class Vector:
    """Where the parts lie."""

    options: PrivacyOptions
    params: int
    returned: Shapes
    classes: int = 0  # 0: no class means
    features: int = 0

    @property
    def size(self) -> int:
        """D."""
        return self.params + sum(prod(s) for s, _ in self.returned.values()) + self.classes * (self.features + 1)

    def cut(self, vector: Tensor) -> Sums:
        """The parts of a vector (D,)."""
        o, names = self.options, sorted(self.returned)
        sizes = [self.params, *(prod(self.returned[name][0]) for name in names)]
        sizes += [self.classes * self.features, self.classes] if self.classes else []
        move, *rest = torch.split(vector, sizes)
        theirs = zip(names, rest[: len(names)], strict=True)
        returned = {name: part.view(self.returned[name][0]) / o.returned_scale for name, part in theirs}
        if not self.classes:
            return Sums(move, returned, None, None)
        means = rest[-2].view(self.classes, self.features) * (o.prototype_bound / o.prototype_scale)
        return Sums(move, returned, means, rest[-1] / o.prototype_scale)


def packed(options: PrivacyOptions, sent: Tensor, found: Tensors) -> Tensor:
    """What a client that was sent parameters (P,) has found, as one vector (D,) in float64."""
    parts = [found["params"].double() - sent.double()]
    parts += [options.returned_scale * found[name].double() for name in sorted(set(found) - KNOWN)]
    if "class_means" in found:
        there = found["class_counts"] > 0
        means = found["class_means"].double()
        lengths = torch.linalg.vector_norm(means, dim=-1, keepdim=True).clamp(min=options.prototype_bound)
        held = options.prototype_scale * there.double()
        parts += [held.unsqueeze(-1) * means / lengths, held]
    return torch.cat([part.flatten() for part in parts])


def clipped(vector: Tensor, bound: float) -> tuple[Tensor, bool]:
    """The vector, shortened to the bound where it is longer, and whether it was not; one that is not finite is 0."""
    length = float(torch.linalg.vector_norm(vector))
    if not length < float("inf"):
        return torch.zeros_like(vector), False
    return (vector, True) if length <= bound else (vector * (bound / length), False)


ROUNDING = 1e-5  # of float32, by which a vector may be longer than its bound when it arrives


def expect_short(vector: Tensor, bound: float) -> None:
    """Refuse a vector that was not clipped."""
    length = float(torch.linalg.vector_norm(vector.double()))
    if length > bound * (1 + ROUNDING):
        raise Refused(f"update has length {length:.6g}, above the clip bound {bound:.6g}")
