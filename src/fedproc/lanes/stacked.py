"""Stacked lanes: L clients as one network whose every tensor has a leading lane axis (vmap).

Clients of like length run together; a lane whose client is done, or smaller than the batch, is masked.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedproc.errors import InputError, RunError
from fedproc.lanes.batches import Feed, prototype_plan, training_plan
from fedproc.lanes.local import prototype_lanes, train_lanes
from fedproc.lanes.serial import Outcome, SerialExecutor
from fedproc.lanes.setting import Job, Setting
from fedproc.lanes.task import Answer, Kind
from fedproc.methods.fedavg import Local, Tensors
from fedproc.networks import Weights
from fedproc.payload import Payload


class StackedNet:
    """L copies of a network's state (L, P), (L, F), (L, C) behind one module."""

    def __init__(self, setting: Setting, weights: Weights) -> None:
        self.module = copy.deepcopy(setting.network).to(setting.device)
        self.weights = Weights(weights.params.requires_grad_(), weights.buffers, weights.counters)
        self._layout = setting.layout
        self._call: Callable[..., Any] = vmap(self._one)
        self._call_without_mask: Callable[..., Any] = vmap(self._one_without_mask)

    def _one(self, named: dict[str, Tensor], images: Tensor, mask: Tensor) -> Any:
        return functional_call(self.module, named, (images, mask))

    def _one_without_mask(self, named: dict[str, Tensor], images: Tensor) -> Any:
        return functional_call(self.module, named, (images, None))

    def embed(self, weights: Weights, images: Tensor) -> Tensor:
        training = self.module.training
        self.module.eval()
        with torch.no_grad():
            z: Tensor = self._call_without_mask(self._layout.named(weights), images)[0]
        self.module.train(training)
        return z

    def forward(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if mask is None:
            mask = torch.ones(images.shape[:2], dtype=torch.bool, device=images.device)
        z, logits = self._call(self._layout.named(self.weights), images, mask)
        return z, logits

    def gradient(self, total: Tensor) -> Tensor:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(total.sum(), self.weights.params)
        return gradient

    def train(self, mode: bool) -> None:
        self.module.train(mode)


class StackedExecutor:
    """Does training and prototypes for up to `lanes` clients of one group at a time, evaluation serially."""

    name = "stacked"

    def __init__(self, lanes: int, threads: int) -> None:
        self.lanes = lanes
        self.threads = threads
        self._serial = SerialExecutor(1, threads)

    def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Answers in the order of the jobs, each with what its client would keep."""
        outcomes: dict[int, Outcome] = {}
        alone = [place for place, job in enumerate(jobs) if job.task.kind is Kind.EVALUATE]
        outcomes.update(zip(alone, self._serial.execute([jobs[p] for p in alone]), strict=True))
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, job in enumerate(jobs):
            if place not in outcomes:
                groups.setdefault((job.task.kind, job.task.trains, job.task.clean, *job.setting.group), []).append(
                    place
                )
        for places in groups.values():
            places.sort(key=lambda p: -jobs[p].setting.steps(jobs[p].task))
            for first in range(0, len(places), self.lanes):
                chosen = places[first : first + self.lanes]
                outcomes.update(zip(chosen, _together([jobs[p] for p in chosen]), strict=True))
        return [outcomes[place] for place in range(len(jobs))]

    def close(self) -> None:
        self._serial.close()


def check_stackable(setting: Setting) -> None:
    """Refuse a network that vmap cannot carry (dropout and the like), saying what to do."""
    weights = setting.layout.read(setting.network)
    pair = Weights(*(torch.stack([t, t]).to(setting.device) for t in weights.tensors().values()))
    images = torch.zeros(2, 2, *setting.train.images.shape[1:], dtype=setting.spec.dtype, device=setting.device)
    try:
        net = StackedNet(setting, pair)
        net.train(True)
        _, logits = net.forward(images, None)
        net.gradient(logits.square().sum(dim=(1, 2)))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--executor stacked: the network {setting.spec.name} cannot be stacked ({reason}); use --executor serial"
        ) from error


def _together(jobs: Sequence[Job]) -> list[Outcome]:
    try:
        return _train(jobs) if jobs[0].task.kind is Kind.TRAIN else _prototypes(jobs)
    except Exception as error:
        clients = ", ".join(str(job.task.client) for job in jobs)
        raise RunError(f"clients {clients}, round {jobs[0].task.round + 1}, {jobs[0].task.kind}: {error}") from error


def _stack(tensors: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([each[name] for each in tensors]) for name in tensors[0]}


def _net(setting: Setting, weights: Sequence[Weights]) -> StackedNet:
    return StackedNet(setting, Weights.of(_stack([each.tensors() for each in weights])))


def _train(jobs: Sequence[Job]) -> list[Outcome]:
    setting, method = jobs[0].setting, jobs[0].setting.method
    started = time.perf_counter()
    net = _net(setting, [job.start for job in jobs])
    feed = Feed(setting, [training_plan(job, range(job.task.epochs)) for job in jobs], stacked=True)
    settings = {
        name: torch.tensor([j.task.settings[name] for j in jobs], dtype=setting.spec.dtype, device=setting.device)
        for name in jobs[0].task.settings
    }
    kept = _stack([job.kept for job in jobs])
    local = Local(
        start=Weights.of(_stack([job.start.tensors() for job in jobs])),
        weights=net.weights,
        velocity=kept["velocity"] if method.keeps_momentum else torch.zeros_like(net.weights.params.detach()),
        sent=_stack([job.task.payload.tensors for job in jobs]),
        settings=settings,
        kept=kept,
        steps=torch.tensor([job.setting.steps(job.task) for job in jobs], device=setting.device),
        log_shares=torch.stack([job.setting.log_shares(job.task.client) for job in jobs]),
    )
    losses = train_lanes(net, feed, jobs[0], local)
    setting.synchronise()
    trained = time.perf_counter()
    tensors = {name: tensor.detach().clone() for name, tensor in net.weights.tensors().items()}
    tensors |= {"losses": losses, **method.answer(local)}
    keeps = {name: tensor.detach().clone() for name, tensor in method.keep(local).items()}
    seconds = {"train": trained - started}
    if method.prototype_pass is not None:
        tensors |= _class_means(net, jobs, clean=method.prototype_pass == "clean")
        setting.synchronise()
        seconds["prototypes"] = time.perf_counter() - trained
    return [
        (
            Answer(
                job.task,
                Payload(
                    {name: tensor[lane] for name, tensor in tensors.items()},
                    {
                        "samples": len(job.setting.shares[job.task.client]),
                        "steps": job.setting.steps(job.task),
                    },
                ),
                seconds={kind: spent / len(jobs) for kind, spent in seconds.items()},
            ),
            {name: tensor[lane] for name, tensor in keeps.items()},
        )
        for lane, job in enumerate(jobs)
    ]


def _prototypes(jobs: Sequence[Job]) -> list[Outcome]:
    started = time.perf_counter()
    net = _net(jobs[0].setting, [Weights.of(job.task.payload.tensors) for job in jobs])
    tensors = _class_means(net, jobs, jobs[0].task.clean)
    jobs[0].setting.synchronise()
    seconds = {"prototypes": (time.perf_counter() - started) / len(jobs)}
    outcomes: list[Outcome] = []
    for lane, job in enumerate(jobs):
        counts = {"samples": len(job.setting.shares[job.task.client])}
        payload = Payload({name: tensor[lane] for name, tensor in tensors.items()}, counts)
        outcomes.append((Answer(job.task, payload, seconds=seconds), {}))
    return outcomes


def _class_means(net: StackedNet, jobs: Sequence[Job], clean: bool) -> Tensors:
    feed = Feed(jobs[0].setting, [prototype_plan(job, clean) for job in jobs], stacked=True)
    means, counts = prototype_lanes(net, feed, jobs[0].setting.spec.classes, clean)
    return {"class_means": means, "class_counts": counts}
