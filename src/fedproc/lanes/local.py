"""Local training, written once for one client or for L side by side.

Every tensor may carry a leading lane axis; the sum over lanes of the per-lane losses gives each lane its
own gradient. How the network is called is the only thing executors differ in (`Net`).
Shapes: ... lanes, B batch, K classes, Q features, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fedproc import kernels
from fedproc.kernels.forks import at_once
from fedproc.lanes.batches import Feed, Step
from fedproc.lanes.setting import Job
from fedproc.lanes.summed import Summed
from fedproc.methods.checked_client import Loss
from fedproc.methods.known import depends_on_z
from fedproc.methods.method import Batch, Local
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.task import Phase, Reply
from fedproc.protocol.weights import Weights

Outcome = tuple[Reply, Tensors]  # what a client answers, and the state it would have then
Note = Callable[[Tensor, Tensor, Tensor | None], None]  # adds losses to the sums and counts of the lanes at work


class Descend(Protocol):
    """The gradient (..., P) by the slopes of a loss by the last z and by the last logits; None: it does not depend on
    them. What is to be done `beside` it may run at the same time.
    """

    def __call__(
        self, by_z: Tensor | None, by_logits: Tensor | None, beside: Callable[[], None] = ..., /
    ) -> Tensor: ...


class Net(Protocol):
    """A network with flat state (..., P), (..., F), (..., C) that one or several clients train."""

    weights: Weights

    def forward(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """z (..., B, Q) and logits (..., B, K), in the mode that `train` last set."""

    def frozen(self, weights: Weights, images: Tensor) -> tuple[Tensor, Tensor]:
        """z and logits of the same network under other weights, in evaluation mode, without gradient."""

    def gradient(self, total: Tensor) -> Tensor:
        """The gradient (..., P) of each lane's own loss (...,); it may be overwritten by the caller."""

    @property
    def descend(self) -> Descend | None:
        """The same without autograd, by the slopes of a loss; None where autograd has to find it."""

    def train(self, mode: bool) -> None:
        """Training or evaluation mode."""


@dataclass(frozen=True)
class Section:
    """Lanes that train by one method: where they are among all lanes (... where there is no lane axis), one of their
    jobs, in what is read off it all agree, and their state.
    """

    at: Any
    job: Job
    local: Local


class Stepper:
    """Steps of local training of one or several sections through one network, and the losses they add up.

    Where the classifier alone is trained, the rest is in evaluation mode; what is not trained sees neither gradient nor
    weight decay nor momentum. Where nothing is, gradients are added up in the velocity. `lr` and the optimizer's
    `state` are those of all lanes.
    """

    def __init__(self, net: Net, sections: Sequence[Section], phase: Phase, lr: Tensor, state: Tensors) -> None:
        self._net, self._sections, self._lr = net, sections, lr
        self._setting = setting = sections[0].job.setting
        self._adds_up = phase.trains == "nothing"
        self._trained = slice(phase.frozen, None)
        if phase.trains in ("classifier", "features"):
            classifier = setting.layout.span("classifier.")  # the last of the parameters
            self._trained = classifier if phase.trains == "classifier" else slice(phase.frozen, classifier.start)
        params = net.weights.params.shape
        self._state = {n: t[..., self._trained] if t.shape == params else t for n, t in state.items()}
        net.train(phase.trains != "classifier")
        lead, device = net.weights.params.shape[:-1], net.weights.params.device
        self._sums = [
            torch.zeros(
                *torch.empty(lead)[s.at].shape,
                1 + len(s.job.setting.method.term_names()),
                dtype=torch.float64,
                device=device,
            )
            for s in sections
        ]
        self._count = torch.zeros(lead, dtype=torch.float64, device=device)
        self._descend = net.descend  # one client's, until a loss comes whose slopes are not known
        self._room: tuple[Tensor, Tensor] | None = None  # for the slopes of all lanes by z and by logits
        self._by_z = False  # whether a loss was of z itself
        self._summed = Summed()
        self._thorough = True  # in the first step what hooks give is checked

    def __call__(self, step: Step) -> None:
        """One step of every lane; a lane that is not at work keeps weights, momentum, statistics and counters."""
        net, active = self._net, step.active
        buffers = None if active is None else net.weights.buffers.clone()
        counters = None if active is None else net.weights.counters.clone()
        gradient = self._gradient(step)
        with torch.no_grad():
            if self._setting.method.moves:
                gradient = self._second_gradient(step, gradient)
            alone = len(self._sections) == 1
            for section in self._sections:
                part = gradient if alone else gradient[section.at]
                corrected = section.job.setting.method.correct(part, section.local, self._thorough)
                if corrected is not part and not alone:
                    part.copy_(corrected)
                elif corrected is not part:
                    gradient = corrected
            self._update(gradient, active)
            self._thorough = False
            if active is None or buffers is None or counters is None:
                return
            working = active.unsqueeze(-1)
            for now, before in ((net.weights.buffers, buffers), (net.weights.counters, counters)):
                if now.numel():
                    now.copy_(torch.where(working, now, before))

    def _update(self, gradient: Tensor, active: Tensor | None) -> None:
        params = self._net.weights.params
        if self._trained != slice(0, None):
            params, gradient = params[..., self._trained], gradient[..., self._trained]
        if self._adds_up:
            self._state["velocity"] += gradient if active is None else torch.where(active.unsqueeze(-1), gradient, 0.0)
        else:
            self._setting.optimizer.step_(params, gradient, self._state, self._lr, active)

    def _gradient(self, step: Step) -> Tensor:
        """The gradient (..., P) of the losses, which are noted; of the last z alone, which the next may overwrite."""
        if self._descend is not None and step.active is not None:
            return self._by_slopes(self._descend, step)
        batches = self._batches(step)
        if self._descend is not None and step.mask is None:
            (section,), (batch,) = self._sections, batches
            method = section.job.setting.method
            terms = method.terms(batch, section.local, self._thorough)
            slopes = method.slopes(batch, terms, self._sums[0])
            if slopes is not None:
                self._count += 1
                return self._descend(*slopes)
            self._descend = None
            found = [method.total(batch, terms, self._thorough)]
        else:
            found = self._losses(batches)
        total = self._total(found)
        with torch.no_grad():
            for section, sums, (own, parts) in zip(self._sections, self._sums, found, strict=True):
                here = None if step.active is None else step.active[section.at]
                note(sums, self._count[section.at], here, (own, *parts))
            return self._net.gradient(total)

    def _by_slopes(self, descend: Descend, step: Step, noted: bool = True) -> Tensor:
        """The same of lanes side by side: autograd sees the losses alone, and of these those that are not known."""
        z, logits = self._net.forward(step.images, step.mask)
        if self._room is None or self._room[0].shape != z.shape:
            self._room = torch.zeros_like(z), torch.zeros_like(logits)
        leaves = [(z[s.at].detach().requires_grad_(), logits[s.at].detach().requires_grad_()) for s in self._sections]
        batches = [self._batch(s.at, step, *own) for s, own in zip(self._sections, leaves, strict=True)]
        parts = [partial(self._slopes, *each, self._room) for each in zip(self._sections, batches, strict=True)]
        found = at_once(parts)

        def note_all() -> None:
            for section, sums, told in zip(self._sections, self._sums, found, strict=True):
                here = None if step.active is None else step.active[section.at]
                told(sums, self._count[section.at], here)

        with torch.no_grad():
            by_z, by_logits = self._room
            return descend(by_z if self._by_z else None, by_logits, note_all if noted else nothing)

    def _slopes(self, section: Section, batch: Batch, room: tuple[Tensor, Tensor]) -> Note:
        """Write a section's slopes into its part of the room; what notes its losses."""
        method, own = section.job.setting.method, [slopes[section.at] for slopes in room]
        terms = method.terms(batch, section.local, self._thorough)
        shares = method.slopes_of_lanes(batch, terms, own[0], own[1])
        if shares is not None:
            from fedproc.kernels.losses import note_shares

            self._by_z |= depends_on_z(terms)
            return partial(note_shares, terms=shares)
        total, parts = method.total(batch, terms, self._thorough)
        slopes: Sequence[Tensor | None] = (None, None)
        if total.requires_grad:
            slopes = torch.autograd.grad(self._summed(total), (batch.z, batch.logits), allow_unused=True)
        self._by_z |= slopes[0] is not None
        for place, slope in zip(own, slopes, strict=True):
            if slope is None:
                place.zero_()
            else:
                place.copy_(slope)
        return partial(note, losses=(total, *parts))

    def _batches(self, step: Step) -> list[Batch]:
        """What each section's loss sees."""
        outputs = self._shares(*self._net.forward(step.images, step.mask))
        return [self._batch(section.at, step, *own) for section, own in zip(self._sections, outputs, strict=True)]

    def _batch(self, at: Any, step: Step, z: Tensor, logits: Tensor) -> Batch:
        mask, net = None if step.mask is None else step.mask[at], self._net
        labels = step.labels if at is ... else step.labels[at]
        return Batch(z, logits, labels, mask, lambda weights: net.frozen(weights, step.images[at]))

    def _losses(self, batches: Sequence[Batch]) -> list[Loss]:
        """Each section's loss (...,) and its terms."""
        return at_once(
            [
                partial(section.job.setting.method.loss, batch, section.local, self._thorough)
                for section, batch in zip(self._sections, batches, strict=True)
            ]
        )

    @staticmethod
    def _total(found: Sequence[Loss]) -> Tensor:
        return found[0][0] if len(found) == 1 else torch.cat([each for each, _ in found])

    def _second_gradient(self, step: Step, gradient: Tensor) -> Tensor:
        """The gradient of the same batch at displaced weights; statistics are those of the first pass."""
        weights = self._net.weights
        held = weights.clone()
        for section in self._sections:
            moved = section.job.setting.method.displace(gradient[section.at], section.local, self._thorough)
            weights.params.data[section.at].add_(moved)
        with torch.enable_grad():
            if self._descend is not None and step.active is not None:
                second = self._by_slopes(self._descend, step, noted=False)
            else:
                second = self._net.gradient(self._total(self._losses(self._batches(step))))
        weights.params.data.copy_(held.params)
        weights.buffers.copy_(held.buffers)
        weights.counters.copy_(held.counters)
        return second

    def _shares(self, z: Tensor, logits: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What each section has of the outputs, cut so that one operation puts their gradients together again."""
        if len(self._sections) == 1:
            return [(z, logits)]
        lanes = [section.at.stop - section.at.start for section in self._sections]
        return list(zip(z.split_with_sizes(lanes), logits.split_with_sizes(lanes), strict=True))

    def clear(self, lane: Any, section: int, place: Any) -> None:
        """Forget the losses of a lane, which is at `place` of its section: another client comes into it."""
        self._sums[section][place].zero_()
        self._count[lane].zero_()

    def losses(self, lane: Any = ..., section: int = 0, place: Any = ...) -> Tensor:
        """The mean over steps of the total loss and its terms (..., 1 + terms)."""
        return self._sums[section][place] / self._count[lane].clamp(min=1).unsqueeze(-1)


def nothing() -> None:
    """What is done beside something where nothing is."""


def note(sums: Tensor, count: Tensor, active: Tensor | None, losses: Sequence[Tensor]) -> None:
    """Add the losses (...,) of the lanes at work to their sums (..., N), and 1 to their count (...,)."""
    if kernels.usable(losses[0]):
        from fedproc.kernels.losses import MOST_TERMS
        from fedproc.kernels.losses import note as kernel

        if len(losses) <= MOST_TERMS:
            kernel(sums, count, active, losses)
            return
    together = torch.stack(tuple(losses), dim=-1)
    sums += together if active is None else torch.where(active.unsqueeze(-1), together, 0.0)
    count += 1 if active is None else active


def train_lanes(net: Net, feed: Feed, job: Job, phase: Phase, local: Local) -> Tensor:
    """Run every step of the feed; returns the mean losses."""
    stepper = Stepper(net, [Section(..., job, local)], phase, local.settings["lr"], local.optimizer)
    for number in range(feed.steps):
        stepper(feed[number])
    return stepper.losses()


def numbers(job: Job) -> Tensors:
    """The round's numbers as tensors on the device, without a copy from the host."""
    spec, device = job.setting.spec, job.setting.device
    return {name: torch.full((), value, dtype=spec.dtype, device=device) for name, value in job.task.settings.items()}


def outcome(
    job: Job, local: Local, losses: Tensor, state: Tensors, means: Tensors, seconds: Mapping[str, float]
) -> Outcome:
    """What a client answers when it is done, and its state then. `local` is the client at the end of the phase whose
    weights it returns, of which it hands over what clients share; `means` are its class means, if they were asked for.
    """
    method, task = job.setting.method, job.task
    tensors = {"losses": losses, **means}
    if task.returns:
        weights = local.weights if method.shared is None else method.shared.take(local.weights)
        tensors |= {**weights.tensors(), **method.reply(local)}
    steps = sum(job.steps(phase) for phase in task.phases if task.answers(phase))
    counts = {"samples": len(job.samples), "steps": steps}
    return Reply(Payload(tensors, counts), seconds=seconds), state
