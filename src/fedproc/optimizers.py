"""The clients' optimizers on flat parameters, of one client or of several side by side: SGD with momentum, Adam (Kingma
and Ba 2015) and AdamW (Loshchilov and Hutter 2019), each computing what torch's of that name computes.

A lane that is not at work keeps its parameters and its optimizer's state. Shapes: ... lanes, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedproc import kernels
from fedproc.kernels import cpu

Name = Literal["sgd", "adam", "adamw"]
State = dict[str, Tensor]
ADAM = ("velocity", "squares", "updates")
NAMES: dict[str, tuple[str, ...]] = {"sgd": ("velocity",), "adam": ADAM, "adamw": ADAM}  # what each keeps


@dataclass(frozen=True)
class Optimizer:
    """An optimizer with its numbers: the momentum is SGD's, betas and epsilon are Adam's. The weight decay of AdamW
    shrinks the parameters, that of the others is part of the gradient.
    """

    name: Name = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def step_(self, params: Tensor, gradient: Tensor, state: State, lr: Tensor, active: Tensor | None) -> None:
        """Move params (..., P) and the state of the active (...,) lanes (None: of all), each by its lr (...,)."""
        if self.name == "sgd":
            sgd_(params, gradient, state["velocity"], lr, self.momentum, self.weight_decay, active)
        else:
            adam_(params, gradient, state, lr, self, active)


def first_state(name: str, params: Tensor) -> State:
    """What an optimizer begins with: the velocity (of Adam, the running mean of gradients); of Adam also the running
    mean of their squares, and how many updates there were.
    """
    state = {"velocity": torch.zeros_like(params)}
    if name == "sgd":
        return state
    updates = torch.zeros(params.shape[:-1], dtype=torch.int64, device=params.device)
    return {**state, "squares": torch.zeros_like(params), "updates": updates}


def sgd_(
    params: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    active: Tensor | None,
) -> None:
    """SGD with momentum."""
    if kernels.usable(params):
        from fedproc.kernels.update import sgd_ as kernel

        if active is None:
            params, gradient, velocity, lr = (tensor.unsqueeze(0) for tensor in (params, gradient, velocity, lr))
            active = torch.ones(1, dtype=torch.bool, device=params.device)
        kernel(params, gradient, velocity, lr, momentum, weight_decay, active)
        return
    if active is None and lr.dim() == 0 and cpu.usable(params) and params.is_contiguous():
        cpu.sgd_(params, gradient.contiguous(), velocity, float(lr), momentum, weight_decay)
        return
    gradient = gradient.add(params, alpha=weight_decay)
    if active is None:
        velocity.mul_(momentum).add_(gradient)
        if lr.dim() == 0 and lr.device.type == "cpu":
            params.add_(velocity, alpha=-float(lr))  # bit for bit what torch.optim.SGD does
        else:
            params.sub_(lr.unsqueeze(-1) * velocity)
        return
    working = active.unsqueeze(-1)
    velocity.copy_(torch.where(working, momentum * velocity + gradient, velocity))
    params.copy_(torch.where(working, params - lr.unsqueeze(-1) * velocity, params))


def adam_(
    params: Tensor, gradient: Tensor, state: State, lr: Tensor, numbers: Optimizer, active: Tensor | None
) -> None:
    """Adam, or AdamW where the numbers say so."""
    mean, squares, updates = state["velocity"], state["squares"], state["updates"]
    updates += 1 if active is None else active
    counted = updates.clamp(min=1).to(torch.float64)  # in float32, 1 - beta2 would lose half of its digits
    size = (lr / (1 - numbers.beta1**counted)).to(lr.dtype)
    root = (1 - numbers.beta2**counted).sqrt().to(lr.dtype)
    decoupled = numbers.name == "adamw"
    if kernels.usable(params):
        from fedproc.kernels.update import adam_ as kernel

        if active is None:
            params, gradient, mean, squares = (t.unsqueeze(0) for t in (params, gradient, mean, squares))
            lr, size, root = (t.unsqueeze(0) for t in (lr, size, root))
            active = torch.ones(1, dtype=torch.bool, device=params.device)
        constants = (numbers.beta1, numbers.beta2, numbers.epsilon, numbers.weight_decay)
        kernel(params, gradient, mean, squares, lr, size, root, active, constants, decoupled)
        return
    lr, size, root = (each.unsqueeze(-1) for each in (lr, size, root))
    weights = params
    if decoupled:
        weights = params * (1 - lr * numbers.weight_decay)
    elif numbers.weight_decay:
        gradient = gradient.add(params, alpha=numbers.weight_decay)
    new_mean = torch.lerp(mean, gradient, 1 - numbers.beta1)
    new_squares = (squares * numbers.beta2).addcmul_(gradient, gradient, value=1 - numbers.beta2)
    moved = weights - size * new_mean / (new_squares.sqrt() / root + numbers.epsilon)
    for old, new in ((params, moved), (mean, new_mean), (squares, new_squares)):
        old.copy_(new if active is None else torch.where(active.unsqueeze(-1), new, old))
