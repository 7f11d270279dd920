"""Units of the same layer in several networks, matched one to one: a network does not change when the units of a layer
are put into another order, so averages are taken of those that do the same.

Shapes: J units of a layer, I of the layer before, P parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from fedproc.methods.method import TensorInfo


@dataclass(frozen=True)
class Layer:
    """Where the weights (J, I, places that a unit before is seen at) and the biases (J,) of a layer lie."""

    start: int
    units: int
    inputs: int
    places: int

    @property
    def biases(self) -> int:
        return self.start + self.units * self.inputs * self.places

    @property
    def stop(self) -> int:
        return self.biases + self.units

    def rows(self, params: Tensor, inputs: Tensor | None = None) -> Tensor:
        """What enters each unit, its bias last (J, I * places + 1); the units before it in another order, if any."""
        weights = params[self.start : self.biases].view(self.units, self.inputs, self.places)
        weights = weights if inputs is None else weights[:, inputs]
        return torch.cat([weights.flatten(1), params[self.biases : self.stop].unsqueeze(-1)], dim=-1)

    def arranged(self, params: Tensor, units: Tensor | None, inputs: Tensor | None) -> Tensor:
        """The layer's part of params with its units, and those before it, in another order."""
        rows = self.rows(params, inputs)
        rows = rows if units is None else rows[units]
        return torch.cat([rows[:, :-1].flatten(), rows[:, -1]])


def chain(tensors: Sequence[TensorInfo]) -> list[Layer]:
    """The layers of a network that is nothing but layers with weights and biases one after the other, by the shapes of
    its parameters.
    """
    layers: list[Layer] = []
    start = 0
    for weight in tensors[::2]:
        units, fan = weight.shape[0], prod(weight.shape[1:])
        inputs = layers[-1].units if layers else weight.shape[1]
        layers.append(Layer(start, units, inputs, fan // inputs))
        start = layers[-1].stop
    return layers


def assignment(units: Tensor, like: Tensor) -> Tensor:
    """The order (J,) of units (J, D) in which they are most alike those of another (J, D): of all orders, the one with
    the largest sum of products, and so with the smallest sum of squared distances.
    """
    from scipy.optimize import linear_sum_assignment  # here, since what matches nothing need not wait for it

    likeness = like.to(torch.float64) @ units.to(torch.float64).T
    _, found = linear_sum_assignment(likeness.cpu().numpy(), maximize=True)
    return torch.from_numpy(found).to(units.device)


def matched(units: Sequence[Tensor], sweeps: int) -> list[Tensor]:
    """The orders in which the clients' units (J, D) fit together: one client after the other is matched to the sum of
    those before it; then, so many times, each once more to the sum of all others.
    """
    exact = [each.to(torch.float64) for each in units]
    orders = [torch.arange(len(exact[0]), device=exact[0].device)]
    total = exact[0].clone()
    for each in exact[1:]:
        orders.append(assignment(each, total))
        total += each[orders[-1]]
    for _ in range(sweeps if len(units) > 1 else 0):
        settled = True
        for place, each in enumerate(exact):
            rest = total - each[orders[place]]
            found = assignment(each, rest)
            if not torch.equal(found, orders[place]):
                settled, orders[place] = False, found
                total = rest + each[found]
        if settled:
            break
    return orders
