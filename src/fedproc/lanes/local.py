"""Local training, written once for one client or for L side by side.

Every tensor may carry a leading lane axis; the sum over lanes of the per-lane losses gives each lane its
own gradient. How the network is called is the only thing executors differ in (`Net`).
Shapes: ... lanes, B batch, K classes, Q features, P parameters.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from fedproc import kernels
from fedproc.lanes.batches import Feed, Step
from fedproc.lanes.setting import Job
from fedproc.methods.fedavg import Batch, Local
from fedproc.networks.flat import Weights
from fedproc.prototypes import class_means, class_sums


class Net(Protocol):
    """A network with flat state (..., P), (..., F), (..., C) that one or several clients train."""

    weights: Weights

    def forward(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """z (..., B, Q) and logits (..., B, K), in the mode that `train` last set."""

    def embed(self, weights: Weights, images: Tensor) -> Tensor:
        """z (..., B, Q) of the same network under other weights, in evaluation mode, without gradient."""

    def gradient(self, total: Tensor) -> Tensor:
        """The gradient (..., P) of each lane's own loss (...,); it may be overwritten by the caller."""

    def train(self, mode: bool) -> None:
        """Training or evaluation mode."""


class Stepper:
    """Steps of local training, and the losses they add up.

    `job` is one of the jobs side by side: in what is read off it here they all agree. Where the classifier alone
    is trained, the rest is in evaluation mode and sees neither gradient nor weight decay nor momentum.
    """

    def __init__(self, net: Net, job: Job, local: Local) -> None:
        self._net, self._local = net, local
        self._setting, self._method = job.setting, job.setting.method
        whole = job.task.trains == "all"
        self._trained = slice(None) if whole else job.setting.layout.span("classifier.")
        net.train(whole)
        params = net.weights.params
        lead = params.shape[:-1]
        terms = 1 + len(self._method.terms)
        self._sums = torch.zeros(*lead, terms, dtype=torch.float64, device=params.device)
        self._count = torch.zeros(lead, dtype=torch.float64, device=params.device)

    def __call__(self, step: Step) -> None:
        """One step of every lane; a lane that is not at work keeps weights, momentum, statistics and counters."""
        net, local = self._net, self._local
        active = step.active
        buffers = None if active is None else net.weights.buffers.clone()
        counters = None if active is None else net.weights.counters.clone()
        z, logits = net.forward(step.images, step.mask)
        batch = Batch(z, logits, step.labels, step.mask, lambda weights: net.embed(weights, step.images))
        total, terms = self._method.loss(batch, local)
        with torch.no_grad():
            gradient = self._method.correct(net.gradient(total), local)
            sgd_(
                net.weights.params[..., self._trained],
                gradient[..., self._trained],
                local.velocity[..., self._trained],
                local.settings["lr"],
                self._setting.momentum,
                self._setting.weight_decay,
                active,
            )
            losses = torch.stack([total, *terms], dim=-1).to(torch.float64)
            if active is None or buffers is None or counters is None:
                self._sums += losses
                self._count += 1
                return
            working = active.unsqueeze(-1)
            net.weights.buffers.copy_(torch.where(working, net.weights.buffers, buffers))
            net.weights.counters.copy_(torch.where(working, net.weights.counters, counters))
            self._sums += torch.where(working, losses, torch.zeros_like(losses))
            self._count += active

    def clear(self, lane: int) -> None:
        """Forget the losses of a lane: another client comes into it."""
        self._sums[lane].zero_()
        self._count[lane].zero_()

    def losses(self) -> Tensor:
        """The mean over steps of the total loss and its terms (..., 1 + terms)."""
        return self._sums / self._count.clamp(min=1).unsqueeze(-1)


def train_lanes(net: Net, feed: Feed, job: Job, local: Local) -> Tensor:
    """Run every step of the feed; returns the mean losses."""
    stepper = Stepper(net, job, local)
    for number in range(feed.steps):
        stepper(feed[number])
    return stepper.losses()


def sgd_(
    params: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    lr: Tensor,
    momentum: float,
    weight_decay: float,
    active: Tensor | None,
) -> None:
    """SGD with momentum on the flat parameters; a lane that is not at work keeps parameters and velocity."""
    if active is not None and kernels.usable(params):
        from fedproc.kernels.update import sgd_ as kernel

        kernel(params, gradient, velocity, lr, momentum, weight_decay, active)
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


@torch.no_grad()
def prototype_lanes(net: Net, feed: Feed, classes: int, clean: bool) -> tuple[Tensor, Tensor]:
    """Class means (..., K, Q) and counts (..., K) over the feed.

    A clean pass is in evaluation mode; the other one uses batch statistics and leaves the running ones alone.
    """
    net.train(not clean)
    buffers, counters = net.weights.buffers.clone(), net.weights.counters.clone()
    sums: Tensor | None = None
    counts: Tensor | None = None
    for number in range(feed.steps):
        step: Step = feed[number]
        z, _ = net.forward(step.images, step.mask)
        step_sums, step_counts = class_sums(z, step.labels, classes, step.mask)
        sums = step_sums if sums is None else sums + step_sums
        counts = step_counts if counts is None else counts + step_counts
    net.weights.buffers.copy_(buffers)
    net.weights.counters.copy_(counters)
    assert sums is not None and counts is not None
    return class_means(sums, counts).to(net.weights.params.dtype), counts
