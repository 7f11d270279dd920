"""Stacked lanes: L clients as one network whose every tensor has a leading lane axis (vmap).

A lane whose client is done takes the next one; a lane at rest, or a client smaller than the batch, is masked. Clients
of several methods and experiments share a rig where their networks agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedproc.errors import InputError, RunError
from fedproc.evaluate import evaluate_all
from fedproc.lanes.batches import Plan, clean_rows, joined, one_more_epoch, ready_images, uploaded
from fedproc.lanes.clock import Clock
from fedproc.lanes.local import Outcome, outcome
from fedproc.lanes.memory import halving
from fedproc.lanes.rig import Rig
from fedproc.lanes.schedule import changes, length, schedule, share_out
from fedproc.lanes.setting import Job, Setting
from fedproc.lanes.stacked_net import StackedNet
from fedproc.lanes.task import Answer, Kind
from fedproc.methods.fedavg import Local, Tensors
from fedproc.networks import Weights
from fedproc.payload import Payload
from fedproc.prototypes import class_means, class_sums

LATENCY = 14 * 64 * 1.3e6  # operations whose time a step costs before its lanes do any: measured, simple CNN, H200
ROW = 512  # samples of one client that a pass without gradient takes as a lane
ROWS, ROW_VALUES = 128, 1 << 28  # such lanes a pass, and the most parameters they may hold together
MOST_MEANS = 256  # clients whose class means are taken together, each with a copy of its weights

Key = tuple[object, ...]


class StackedExecutor:
    """Does jobs stacked over at most `lanes` lanes: as many as help, or where they are not `fixed` as many as pay."""

    name = "stacked"

    def __init__(self, lanes: int, threads: int) -> None:
        self.lanes = lanes
        self.threads = threads
        self.notes: list[str] = []
        self.steps_worked = 0  # lane-steps that trained a client
        self.steps_run = 0  # all lane-steps
        self.fixed = True
        self._rigs: dict[Key, tuple[frozenset[object], list[tuple[list[object], Rig]]]] = {}
        self._nets: dict[object, StackedNet] = {}
        self._rows: tuple[list[tuple[Setting, int]], tuple[Plan, Tensor, Tensor]] | None = None

    def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Answers in the order of the jobs, each with what its client would keep."""
        outcomes: dict[int, Outcome] = {}
        pools: dict[Key, list[int]] = {}
        for place, job in enumerate(jobs):
            pools.setdefault((job.task.kind, job.task.trains, job.task.clean, *job.setting.pool), []).append(place)
        used = [(some[1], *some[3:]) for some in pools if some[0] is Kind.TRAIN]
        if used:
            self._rigs = {key: rigs for key, rigs in self._rigs.items() if key in used}
        for places in pools.values():
            some = [jobs[place] for place in places]
            with named(some):
                outcomes.update(zip(places, halving(self._work(some), self), strict=True))
        return [outcomes[place] for place in range(len(jobs))]

    def drop(self) -> None:
        """Let go of what can be made again."""
        self._rigs.clear()
        self._nets.clear()
        self._rows = None

    def close(self) -> None:
        self.drop()

    def _work(self, jobs: Sequence[Job]) -> Callable[[], list[Outcome]]:
        does = {Kind.TRAIN: self._train, Kind.PROTOTYPES: self._prototypes, Kind.EVALUATE: self._evaluate}
        return partial(does[jobs[0].task.kind], jobs)

    def _net(self, setting: Setting) -> StackedNet:
        """A module for passes without gradient, made once."""
        if setting.spec not in self._nets:
            none = setting.layout.read(setting.network)
            empty = Weights(*(tensor.new_zeros(0, *tensor.shape) for tensor in none.tensors().values()))
            self._nets[setting.spec] = StackedNet(setting, empty)
        return self._nets[setting.spec]

    def _train(self, jobs: Sequence[Job]) -> list[Outcome]:
        """All jobs of a pool over the rigs its groups share, and the class means of those who are asked for them."""
        setting = jobs[0].setting
        clock = Clock(setting.device)
        done: dict[int, tuple[Local, Tensor]] = {}
        steps = [job.setting.steps(job.task) for job in jobs]
        groups: dict[object, list[int]] = {}
        for place, job in enumerate(jobs):
            groups.setdefault(job.setting.group, []).append(place)
        for members, rig in self._rigs_for(jobs, steps, groups):
            done |= self._run(rig, jobs, steps, [groups[group] for group in members])
        clock.mark()
        means: dict[int, Tensors] = {}
        passes = []
        for mode in ("clean", "training"):
            asked = [place for place, job in enumerate(jobs) if job.setting.method.prototype_pass == mode]
            found = self._means([jobs[p] for p in asked], [done[p][0].weights for p in asked], mode == "clean")
            means.update(zip(asked, found, strict=True))
            passes.append(asked)
            clock.mark()
        training, *spans = clock.spans()
        seconds = [{"train": training * count / sum(steps)} for count in steps]
        for asked, span in zip(passes, spans, strict=True):
            for place in asked:
                seconds[place]["prototypes"] = span / len(asked)
        return [outcome(job, *done[place], means.get(place, {}), seconds[place]) for place, job in enumerate(jobs)]

    def _rigs_for(
        self, jobs: Sequence[Job], steps: Sequence[int], groups: dict[object, list[int]]
    ) -> list[tuple[list[object], Rig]]:
        """The rigs of these groups: made once, and again when other groups come or their clients need more room."""
        setting = jobs[0].setting
        key = (jobs[0].task.trains, *setting.pool)
        batch = max(min(job.setting.batch_size, len(job.setting.shares[job.task.client])) for job in jobs)
        if key in self._rigs and self._rigs[key][0] == frozenset(groups):
            rigs = self._rigs[key][1]
            if all(_fits(rig, batch, steps, [groups[group] for group in members]) for members, rig in rigs):
                return rigs
        self._rigs.pop(key, None)
        names = list(groups)
        latency = 1e12 if self.fixed else LATENCY / setting.operations
        rigs = []
        for parts in share_out([[steps[p] for p in groups[name]] for name in names], latency, self.lanes):
            needed = max(_needed(steps, groups[names[group]], lanes) for group, lanes in parts)
            examples = [(jobs[groups[names[group]][0]], lanes) for group, lanes in parts]
            rigs.append(([names[group] for group, _ in parts], Rig(examples, batch, 2 * needed)))
        self._rigs[key] = (frozenset(groups), rigs)
        return rigs

    def _run(
        self, rig: Rig, jobs: Sequence[Job], steps: Sequence[int], members: Sequence[Sequence[int]]
    ) -> dict[int, tuple[Local, Tensor]]:
        """Train the jobs of each section of a rig, each on its lanes."""
        queues: list[list[int]] = []
        for places, lanes in zip(members, rig.lanes, strict=True):
            found = schedule([steps[place] for place in places], lanes)
            queues += [[places[i] for i in queue] for queue in found] + [[]] * (lanes - len(found))
        rig.rewind()
        for lane, queue in enumerate(queues):
            if queue:
                rig.enter(lane, jobs[queue[0]], 0)
        done: dict[int, tuple[Local, Tensor]] = {}
        at = 0
        for step, moves in changes(queues, steps):
            rig.run(step - at)
            at = step
            for lane, finished, following in moves:
                done[finished] = rig.leave(lane, jobs[finished])
                if following is not None:
                    rig.enter(lane, jobs[following], at)
        self.steps_worked += sum(steps[place] for places in members for place in places)
        self.steps_run += at * len(queues)
        return done

    def _prototypes(self, jobs: Sequence[Job]) -> list[Outcome]:
        started = time.perf_counter()
        found = self._means(jobs, [Weights.of(job.task.payload.tensors) for job in jobs], jobs[0].task.clean)
        jobs[0].setting.synchronise()
        seconds = {"prototypes": (time.perf_counter() - started) / len(jobs)}
        return [
            (Answer(j.task, Payload(tensors, {"samples": len(j.setting.shares[j.task.client])}), seconds=seconds), {})
            for j, tensors in zip(jobs, found, strict=True)
        ]

    @torch.no_grad()
    def _means(self, jobs: Sequence[Job], weights: Sequence[Weights], clean: bool) -> list[Tensors]:
        """Class means and counts of each job's samples under its weights.

        Each batch is a lane of its own with a copy of its client's weights, so that nobody waits for the largest.
        """
        if not jobs:
            return []
        if len(jobs) > MOST_MEANS:
            parts = [slice(first, first + MOST_MEANS) for first in range(0, len(jobs), MOST_MEANS)]
            return [found for part in parts for found in self._means(jobs[part], weights[part], clean)]
        setting = jobs[0].setting
        net, classes = self._net(setting), setting.spec.classes
        net.train(not clean)
        plan, owner, each = self._prototype_rows(jobs, clean)
        everyone = Weights.of(_stack([own.tensors() for own in weights]))
        cursor = torch.zeros(1, dtype=torch.int64, device=setting.device)
        sums, counts = [], []
        rows = max(1, min(ROWS, ROW_VALUES // everyone.params.shape[1]))
        for first in range(0, len(owner), rows):
            some = slice(first, first + rows)
            lanes = Weights.of({n: t.index_select(0, owner[some]) for n, t in everyone.tensors().items()})
            draws = {name: values[None, some] for name, values in plan.draws.items()}
            images, labels = ready_images(setting, cursor, plan.index[None, some], draws)
            mask = None if plan.mask is None else plan.mask[some]
            z, _ = net.outputs(lanes, images, mask)
            row_sums, row_counts = class_sums(z, labels, classes, mask)
            sums.append(row_sums)
            counts.append(row_counts)
        total, held = (
            torch.segment_reduce(torch.cat(of_rows).to(torch.float64), "sum", lengths=each, axis=0, unsafe=True)
            for of_rows in (sums, counts)
        )
        means = class_means(total, held).to(everyone.params.dtype)
        whole = held.to(torch.int64)
        return [{"class_means": means[place], "class_counts": whole[place]} for place in range(len(jobs))]

    def _prototype_rows(self, jobs: Sequence[Job], clean: bool) -> tuple[Plan, Tensor, Tensor]:
        """The batches of a pass that takes class means, whose each is, and how many each job has. A clean pass over the
        same clients is the same in every round.
        """
        asked = [(job.setting, job.task.client) for job in jobs]
        if self._rows is not None and clean and self._rows[0] == asked:
            return self._rows[1]
        if clean:
            plan, each = clean_rows([setting.shares[client] for setting, client in asked], ROW)
        else:
            plan, each = joined([one_more_epoch(job) for job in jobs])
        device, rows = jobs[0].setting.device, np.array(each)
        made = plan, uploaded(np.repeat(np.arange(len(rows)), rows), device), uploaded(rows, device)
        self._rows = (asked, made) if clean else None
        return made

    def _evaluate(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Models that are asked about the same images see them side by side."""
        answers: dict[int, Outcome] = {}
        same: dict[object, list[int]] = {}
        for place, job in enumerate(jobs):
            held_out = job.setting.held_out
            same.setdefault((id(held_out.images), held_out.whole or place), []).append(place)
        for places in same.values():
            for first in range(0, len(places), ROWS):
                some = places[first : first + ROWS]
                answers.update(zip(some, self._score([jobs[place] for place in some]), strict=True))
        return [answers[place] for place in range(len(jobs))]

    def _score(self, jobs: Sequence[Job]) -> list[Outcome]:
        started = time.perf_counter()
        setting, sent = jobs[0].setting, _stack([job.task.payload.tensors for job in jobs])
        net, weights = self._net(setting), Weights.of(sent)
        net.train(False)

        def forward(images: Tensor) -> tuple[Tensor, Tensor]:
            return net.outputs(weights, images.expand(len(jobs), *images.shape), None)

        held_outs = [job.setting.held_out for job in jobs]
        spec = setting.spec
        models = (sent["prototypes"], sent["known"])
        payloads = evaluate_all(forward, held_outs, setting.normalisation, spec.dtype, spec.classes, *models)
        setting.synchronise()
        seconds = {"evaluation": (time.perf_counter() - started) / len(jobs)}
        return [(Answer(j.task, p, seconds=seconds), {}) for j, p in zip(jobs, payloads, strict=True)]


def check_stackable(setting: Setting) -> None:
    """Refuse a network that vmap cannot carry (dropout and the like), saying what to do."""
    here = replace(setting, device=torch.device("cpu"))  # what can be stacked does not depend on the device
    pair = Weights(*(torch.stack([t, t]) for t in setting.layout.read(setting.network).tensors().values()))
    images = torch.zeros(2, 2, *setting.train.images.shape[1:], dtype=setting.spec.dtype)
    try:
        net = StackedNet(here, pair)
        net.train(True)
        _, logits = net.forward(images, None)
        net.gradient(logits.square().sum(dim=(1, 2)))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--executor stacked: the network {setting.spec.name} cannot be stacked ({reason}); use --executor serial"
        ) from error


def _fits(rig: Rig, batch: int, steps: Sequence[int], members: Sequence[Sequence[int]]) -> bool:
    """Whether a rig holds the batches of its sections' jobs."""
    needed = [_needed(steps, places, lanes) for places, lanes in zip(members, rig.lanes, strict=True)]
    return rig.batch >= batch and rig.capacity >= max(needed)


def _needed(steps: Sequence[int], places: Sequence[int], lanes: int) -> int:
    return length([steps[place] for place in places], lanes)


@contextmanager
def named(jobs: Sequence[Job]) -> Iterator[None]:
    """Name the clients in whatever goes wrong."""
    try:
        yield
    except Exception as error:
        clients = ", ".join(str(job.task.client) for job in jobs)
        raise RunError(f"clients {clients}, round {jobs[0].task.round + 1}, {jobs[0].task.kind}: {error}") from error


def _stack(tensors: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([each[name] for each in tensors]) for name in tensors[0] if _everywhere(name, tensors)}


def _everywhere(name: str, tensors: Sequence[Tensors]) -> bool:
    return all(name in each for each in tensors)
