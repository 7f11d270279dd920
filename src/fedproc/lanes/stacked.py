"""Stacked lanes: L clients as one network whose every tensor has a leading lane axis (vmap).

A lane whose client is done takes the next one; a lane at rest, or a client smaller than the batch, is masked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from fedproc.errors import InputError, RunError
from fedproc.lanes.batches import Feed, prototype_plan, training_plan
from fedproc.lanes.local import prototype_lanes
from fedproc.lanes.rig import Rig, Trained
from fedproc.lanes.schedule import changes, schedule
from fedproc.lanes.serial import Outcome, SerialExecutor
from fedproc.lanes.setting import Job, Setting
from fedproc.lanes.stacked_net import StackedNet
from fedproc.lanes.task import Answer, Kind
from fedproc.methods.fedavg import Local, Tensors
from fedproc.networks import Weights
from fedproc.payload import Payload


class StackedExecutor:
    """Does training and prototypes for up to `lanes` clients of one group at a time, evaluation serially."""

    name = "stacked"

    def __init__(self, lanes: int, threads: int) -> None:
        self.lanes = lanes
        self.threads = threads
        self._serial = SerialExecutor(1, threads)
        self._rigs: dict[tuple[object, ...], tuple[tuple[int, int], Rig]] = {}

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
            if jobs[places[0]].task.kind is Kind.TRAIN:
                outcomes.update(zip(places, self._train([jobs[p] for p in places]), strict=True))
                continue
            for first in range(0, len(places), self.lanes):
                chosen = places[first : first + self.lanes]
                with _named([jobs[p] for p in chosen]):
                    outcomes.update(zip(chosen, _prototypes([jobs[p] for p in chosen]), strict=True))
        return [outcomes[place] for place in range(len(jobs))]

    def _train(self, jobs: Sequence[Job]) -> list[Outcome]:
        """All jobs of a group over the lanes of its rig, which is made once and made larger when it must be."""
        steps = [job.setting.steps(job.task) for job in jobs]
        queues = schedule(steps, self.lanes)
        needed = max(sum(steps[job] for job in queue) for queue in queues)
        batch = max(min(job.setting.batch_size, len(job.setting.shares[job.task.client])) for job in jobs)
        at = (jobs[0].task.trains, *jobs[0].setting.group)
        with _named(jobs):
            shape = (len(queues), batch)
            if at not in self._rigs or self._rigs[at][0] != shape or self._rigs[at][1].capacity < needed:
                self._rigs.pop(at, None)
                self._rigs[at] = (shape, Rig(jobs[0], len(queues), batch, needed + needed // 8))
            return _train(jobs, self._rigs[at][1], queues)

    def close(self) -> None:
        self._serial.close()
        self._rigs.clear()


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


@contextmanager
def _named(jobs: Sequence[Job]) -> Iterator[None]:
    """Name the clients in whatever goes wrong."""
    try:
        yield
    except Exception as error:
        clients = ", ".join(str(job.task.client) for job in jobs)
        raise RunError(f"clients {clients}, round {jobs[0].task.round + 1}, {jobs[0].task.kind}: {error}") from error


def _stack(tensors: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([each[name] for each in tensors]) for name in tensors[0]}


def _net(setting: Setting, weights: Sequence[Weights]) -> StackedNet:
    return StackedNet(setting, Weights.of(_stack([each.tensors() for each in weights])))


def _train(jobs: Sequence[Job], rig: Rig, queues: Sequence[Sequence[int]]) -> list[Outcome]:
    setting, method = jobs[0].setting, jobs[0].setting.method
    started = time.perf_counter()
    steps = [job.setting.steps(job.task) for job in jobs]
    rig.feed(queues, [training_plan(job, range(job.task.epochs)) for job in jobs])
    for lane, queue in enumerate(queues):
        rig.enter(lane, jobs[queue[0]])
    done: dict[int, Trained] = {}
    at = 0
    for step, moves in changes(queues, steps):
        rig.run(step - at)
        at = step
        for lane, finished, following in moves:
            done[finished] = rig.leave(lane)
            if following is not None:
                rig.enter(lane, jobs[following])
    trained = [done[place] for place in range(len(jobs))]
    weights = _stack([each.weights.tensors() for each in trained])
    local = Local(
        start=Weights.of(_stack([job.start.tensors() for job in jobs])),
        weights=Weights.of(weights),
        velocity=torch.stack([each.velocity for each in trained]),
        sent=_stack([job.task.payload.tensors for job in jobs]),
        settings={
            name: torch.tensor([j.task.settings[name] for j in jobs], dtype=setting.spec.dtype, device=setting.device)
            for name in jobs[0].task.settings
        },
        kept=_stack([job.kept for job in jobs]),
        steps=torch.tensor(steps, device=setting.device),
        log_shares=torch.stack([job.setting.log_shares(job.task.client) for job in jobs]),
    )
    tensors = {**weights, "losses": torch.stack([each.losses for each in trained]), **method.answer(local)}
    keeps = {name: tensor.detach().clone() for name, tensor in method.keep(local).items()}
    setting.synchronise()
    seconds = {"train": time.perf_counter() - started}
    if method.prototype_pass is not None:
        began = time.perf_counter()
        clean = method.prototype_pass == "clean"
        parts = []
        for first in range(0, len(jobs), len(queues)):
            some = slice(first, first + len(queues))
            parts.append(_class_means(_net(setting, [each.weights for each in trained[some]]), jobs[some], clean))
        tensors |= {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        setting.synchronise()
        seconds["prototypes"] = time.perf_counter() - began
    outcomes: list[Outcome] = []
    for lane, job in enumerate(jobs):
        counts = {"samples": len(job.setting.shares[job.task.client]), "steps": steps[lane]}
        payload = Payload({name: tensor[lane] for name, tensor in tensors.items()}, counts)
        spent = {kind: each / len(jobs) for kind, each in seconds.items()}
        outcomes.append((Answer(job.task, payload, seconds=spent), {n: t[lane] for n, t in keeps.items()}))
    return outcomes


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
