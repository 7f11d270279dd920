"""Stacked lanes: L clients as one network whose every tensor has a leading lane axis (vmap).

A lane whose client is done takes the next one; a lane at rest, or a client smaller than the batch, is masked. Clients
of several methods and experiments share lanes where their networks agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedproc.errors import InputError, MethodError
from fedproc.lanes.batches import Plan, clean_rows, joined, one_more_epoch, ready_images, uploaded
from fedproc.lanes.captured import CapturedLanes
from fedproc.lanes.clock import Clock
from fedproc.lanes.evaluate import evaluate_all
from fedproc.lanes.executor import Done, LaneError, answered
from fedproc.lanes.local import Outcome, outcome
from fedproc.lanes.memory import halving
from fedproc.lanes.schedule import changes, length, schedule, share_out
from fedproc.lanes.serial import SerialNet, means_kind, work_alone
from fedproc.lanes.setting import ClientData, Job, Setting
from fedproc.lanes.stacked_net import StackedNet
from fedproc.methods.method import Local
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.task import Kind, MeansMode, Phase
from fedproc.protocol.weights import Weights
from fedproc.prototypes import class_means, class_sums

LATENCY = 14 * 64 * 1.3e6  # operations whose time a step costs before its lanes do any: measured, simple CNN, H200
ROW = 512  # samples of one client that a pass without gradient takes as a lane
ROWS, ROW_VALUES = 128, 1 << 28  # such lanes in a pass, and the most parameters they may hold together
MOST_READY = 256  # trained clients that wait to be handed on together, each with a copy of its weights

Key = tuple[object, ...]


@dataclass
class _Trained:
    """What becomes of a job: its state as its phases go, and the client as it is when it returns its weights."""

    state: Tensors
    answer: tuple[Local, Tensor] | None = None


@dataclass
class _Ready:
    """Clients that are trained and not handed on yet."""

    places: list[int] = field(default_factory=list)
    steps: int = 0


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
        self._captured: dict[Key, tuple[frozenset[object], list[tuple[list[object], CapturedLanes]]]] = {}
        self._nets: dict[object, StackedNet] = {}
        self._rows: tuple[list[ClientData], tuple[Plan, Tensor, Tensor]] | None = None

    def execute(self, jobs: Sequence[Job], done: Done) -> None:
        """Do the jobs, and hand on outcomes as they come."""
        pools: dict[Key, list[int]] = {}
        for place, job in enumerate(jobs):
            pools.setdefault(_pool(job), []).append(place)
        training = [key for key in pools if key[0] is Kind.TRAIN]
        if training:
            self._captured = {key: lanes for key, lanes in self._captured.items() if key[0] in training}
        for key, places in pools.items():
            handed: set[int] = set()

            def hand_on(at: int, found: Outcome, places: list[int] = places, handed: set[int] = handed) -> None:
                handed.add(at)
                done(places[at], found)

            some = [jobs[place] for place in places]
            with naming(some, places):
                halving(partial(self._work, key, some, handed, hand_on), self)

    def drop(self) -> None:
        """Let go of what can be made again."""
        self._captured.clear()
        self._nets.clear()
        self._rows = None

    def close(self) -> None:
        self.drop()

    def _work(self, key: Key, jobs: Sequence[Job], handed: set[int], done: Done) -> None:
        """Do those jobs of a pool that are not handed on yet."""
        left = [at for at in range(len(jobs)) if at not in handed]
        does: dict[Kind, Callable[[Sequence[Job], Done], None]] = {
            Kind.TRAIN: partial(self._train, key),
            Kind.CLASS_MEANS: self._class_means,
            Kind.EVALUATE: self._evaluate,
        }
        does[jobs[0].task.kind]([jobs[at] for at in left], lambda at, found: done(left[at], found))

    def _net(self, setting: Setting) -> StackedNet:
        """A module for passes without gradient, made once."""
        if setting.spec not in self._nets:
            none = setting.layout.read(setting.network)
            empty = Weights(*(tensor.new_zeros(0, *tensor.shape) for tensor in none.tensors().values()))
            self._nets[setting.spec] = StackedNet(setting, empty)
        return self._nets[setting.spec]

    def _train(self, key: Key, jobs: Sequence[Job], done: Done) -> None:
        """All jobs of a pool, phase by phase, over the lanes its groups share; class means of those who are asked for
        them. Clients that went through the last phase are handed on so many at a time.
        """
        clock = Clock(jobs[0].setting.device)
        under_way: dict[int, _Trained] = {}
        ready = _Ready()
        phases = len(jobs[0].task.phases)
        for number in range(phases):
            of = [job.task.phases[number] for job in jobs]
            steps = [job.steps(phase) for job, phase in zip(jobs, of, strict=True)]

            def state_of(place: int) -> Tensors:
                return under_way[place].state if place in under_way else jobs[place].state

            def finished(place: int, local: Local, losses: Tensor, of: list[Phase] = of, number: int = number,
                         steps: list[int] = steps) -> None:  # fmt: skip
                job = jobs[place]
                before = under_way.get(place)
                answer = (local, losses) if job.task.answers(of[place]) else before.answer if before else None
                under_way[place] = _Trained(job.setting.method.next_state(local), answer)
                if number == phases - 1:
                    ready.places.append(place)
                    ready.steps += steps[place]
                    if len(ready.places) == MOST_READY:
                        self._hand_on(jobs, under_way, ready, steps, clock, done)

            groups: dict[object, list[int]] = {}
            for place, job in enumerate(jobs):
                groups.setdefault((job.setting.group, job.signature), []).append(place)
            for members, lanes in self._lanes_for((key, number), jobs, of, steps, groups):
                self._run(lanes, jobs, of, steps, [groups[group] for group in members], state_of, finished)
        self._hand_on(jobs, under_way, ready, steps, clock, done)

    def _hand_on(
        self, jobs: Sequence[Job], under_way: dict[int, _Trained], ready: _Ready, steps: Sequence[int], clock: Clock,
        done: Done,
    ) -> None:  # fmt: skip
        """Take the class means of those that are ready and were asked for them, and let them go."""
        clock.mark()
        means: dict[int, Tensors] = {}
        passes: list[list[int]] = []
        modes: tuple[MeansMode, MeansMode] = ("clean", "training")
        answers = {}
        for place in ready.places:
            answer = under_way[place].answer
            assert answer is not None
            answers[place] = answer
        for mode in modes:
            asked = [place for place in ready.places if jobs[place].task.means == mode]
            found = self._means([jobs[p] for p in asked], [answers[p][0].weights for p in asked], mode)
            means.update(zip(asked, found, strict=True))
            passes.append(asked)
            clock.mark()
        training, *spans = clock.spans()
        seconds = {place: {"train": training * steps[place] / max(1, ready.steps)} for place in ready.places}
        for asked, span in zip(passes, spans, strict=True):
            for place in asked:
                seconds[place][means_kind(jobs[place])] = span / len(asked)
        for place in ready.places:
            found_ = outcome(
                jobs[place], *answers[place], under_way[place].state, means.get(place, {}), seconds[place]
            )  # fmt: skip
            del under_way[place], answers[place]
            done(place, found_)
        ready.places, ready.steps = [], 0
        clock.restart()

    def _lanes_for(
        self,
        key: Key,
        jobs: Sequence[Job],
        phases: Sequence[Phase],
        steps: Sequence[int],
        groups: dict[object, list[int]],
    ) -> list[tuple[list[object], CapturedLanes]]:
        """The lanes of these groups: made once, and again when other groups come or their clients need more room."""
        setting = jobs[0].setting
        batch = max(min(job.setting.batch_size, len(job.samples)) for job in jobs)
        if key in self._captured and self._captured[key][0] == frozenset(groups):
            made = self._captured[key][1]
            if all(_fits(lanes, batch, steps, [groups[group] for group in members]) for members, lanes in made):
                return made
        self._captured.pop(key, None)
        names = list(groups)
        latency = 1e12 if self.fixed else LATENCY / setting.operations
        made = []
        for parts in share_out([[steps[p] for p in groups[name]] for name in names], latency, self.lanes):
            needed = max(_needed(steps, groups[names[group]], lanes) for group, lanes in parts)
            examples = [(jobs[groups[names[group]][0]], lanes) for group, lanes in parts]
            lanes = CapturedLanes(examples, phases[groups[names[parts[0][0]]][0]], batch, 2 * max(1, needed))
            made.append(([names[group] for group, _ in parts], lanes))
        self._captured[key] = (frozenset(groups), made)
        return made

    def _run(
        self,
        lanes: CapturedLanes,
        jobs: Sequence[Job],
        phases: Sequence[Phase],
        steps: Sequence[int],
        members: Sequence[Sequence[int]],
        state_of: Callable[[int], Tensors],
        finished: Callable[[int, Local, Tensor], None],
    ) -> None:
        """Train the jobs of each section, each on its lanes."""
        queues: list[list[int]] = []
        for places, count in zip(members, lanes.lanes, strict=True):
            found = schedule([steps[place] for place in places], count)
            queues += [[places[i] for i in queue] for queue in found] + [[]] * (count - len(found))
        lanes.rewind()
        for lane, queue in enumerate(queues):
            if queue:
                lanes.enter(lane, jobs[queue[0]], state_of(queue[0]), phases[queue[0]], 0)
        at = 0
        for step, moves in changes(queues, steps):
            lanes.run(step - at)
            at = step
            for lane, last, following in moves:
                left = lanes.leave(lane, jobs[last], state_of(last), phases[last])
                if following is not None:
                    lanes.enter(lane, jobs[following], state_of(following), phases[following], at)
                finished(last, *left)
        self.steps_worked += sum(steps[place] for places in members for place in places)
        self.steps_run += at * len(queues)

    def _class_means(self, jobs: Sequence[Job], done: Done) -> None:
        """Covariances take more room than stacked lanes have: those clients go one by one."""
        alone = [place for place, job in enumerate(jobs) if job.task.covariances]
        if alone:
            net = SerialNet(jobs[0].setting)
            for place in alone:
                done(place, work_alone(net, jobs[place]))
        others = [place for place, job in enumerate(jobs) if not job.task.covariances]
        if not others:
            return
        started = time.perf_counter()
        some = [jobs[place] for place in others]
        found = self._means(some, [job.sent for job in some], some[0].task.means or "clean")
        some[0].setting.synchronise()
        seconds = {"prototypes": (time.perf_counter() - started) / len(some)}
        for place, job, tensors in zip(others, some, found, strict=True):
            done(place, answered(Payload(tensors, {"samples": len(job.samples)}), seconds))

    @torch.no_grad()
    def _means(self, jobs: Sequence[Job], weights: Sequence[Weights], mode: MeansMode) -> list[Tensors]:
        """Class means and counts of each job's samples under its weights.

        Each batch is a lane of its own with a copy of its client's weights, so that nobody waits for the largest.
        """
        if not jobs:
            return []
        if len(jobs) > MOST_READY:
            parts = [slice(first, first + MOST_READY) for first in range(0, len(jobs), MOST_READY)]
            return [found for part in parts for found in self._means(jobs[part], weights[part], mode)]
        setting = jobs[0].setting
        net, classes = self._net(setting), setting.spec.classes
        net.train(mode == "training")
        plan, owner, each = self._prototype_rows(jobs, mode == "clean")
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
        asked = [job.samples for job in jobs]
        if self._rows is not None and clean and self._rows[0] == asked:
            return self._rows[1]
        if clean:
            plan, each = clean_rows([data.indices for data in asked], ROW)
        else:
            plan, each = joined([one_more_epoch(job) for job in jobs])
        device, rows = jobs[0].setting.device, np.array(each)
        made = plan, uploaded(np.repeat(np.arange(len(rows)), rows), device), uploaded(rows, device)
        self._rows = (asked, made) if clean else None
        return made

    def _evaluate(self, jobs: Sequence[Job], done: Done) -> None:
        """Models that are asked about the same images see them side by side."""
        same: dict[object, list[int]] = {}
        for place, job in enumerate(jobs):
            assert job.held_out is not None
            same.setdefault((id(job.held_out.images), job.held_out.whole or place), []).append(place)
        for places in same.values():
            for first in range(0, len(places), ROWS):
                some = places[first : first + ROWS]
                for place, found in zip(some, self._score([jobs[place] for place in some]), strict=True):
                    done(place, found)

    @torch.no_grad()
    def _score(self, jobs: Sequence[Job]) -> list[Outcome]:
        started = time.perf_counter()
        setting, sent = jobs[0].setting, _stack([job.task.payload.tensors for job in jobs])
        models = [job.evaluated for job in jobs]
        net, weights = self._net(setting), Weights.of(_stack([model.tensors() for model in models]))
        net.train(False)

        def forward(images: Tensor) -> tuple[Tensor, Tensor]:
            return net.outputs(weights, images.expand(len(jobs), *images.shape), None)

        held_outs = [job.held_out for job in jobs if job.held_out is not None]
        spec = setting.spec
        prototypes = (sent["prototypes"], sent["known"])
        payloads = evaluate_all(forward, held_outs, setting.normalisation, spec.dtype, spec.classes, *prototypes)
        setting.synchronise()
        seconds = {"evaluation": (time.perf_counter() - started) / len(jobs)}
        return [answered(payload, seconds) for payload in payloads]


def _pool(job: Job) -> Key:
    """Jobs that agree here can be done side by side."""
    task = job.task
    phases = tuple((phase.name, phase.trains, phase.returns, phase.frozen) for phase in task.phases)
    means = None if task.kind is Kind.TRAIN else task.means
    return (task.kind, phases, means, task.covariances, *job.setting.pool)


def check_stackable(setting: Setting) -> None:
    """Refuse a network that vmap cannot carry (dropout and the like), saying what to do."""
    here = replace(setting, device=torch.device("cpu"))  # what can be stacked does not depend on the device
    pair = Weights(*(torch.stack([t, t]) for t in setting.layout.read(setting.network).tensors().values()))
    images = torch.zeros(2, 2, *setting.train.images.shape[1:], dtype=setting.spec.dtype)
    try:
        net = StackedNet(here, pair)
        net.train(True)
        _, logits = net.forward(images, None)
        if net.descend is None:
            net.gradient(logits.square().sum(dim=(1, 2)))
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"--executor stacked: the network {setting.spec.name} cannot be stacked ({reason}); use --executor serial"
        ) from error


def _fits(lanes: CapturedLanes, batch: int, steps: Sequence[int], members: Sequence[Sequence[int]]) -> bool:
    """Whether lanes hold the batches of their sections' jobs."""
    needed = [_needed(steps, places, count) for places, count in zip(members, lanes.lanes, strict=True)]
    return lanes.batch >= batch and lanes.capacity >= max(needed)


def _needed(steps: Sequence[int], places: Sequence[int], lanes: int) -> int:
    return length([steps[place] for place in places], lanes)


@contextmanager
def naming(jobs: Sequence[Job], places: Sequence[int]) -> Iterator[None]:
    """Say which jobs are concerned by whatever goes wrong: of a method that fails, those that it trains."""
    try:
        yield
    except LaneError:
        raise
    except MethodError as error:
        raise LaneError(_concerned(error, jobs, places) or places, jobs[0].task, error) from error
    except Exception as error:
        raise LaneError(places, jobs[0].task, error) from error


def _concerned(error: MethodError, jobs: Sequence[Job], places: Sequence[int]) -> list[int]:
    """Whose hook it was: one experiment's, or for what lanes of a group have in common, that of all in the group."""
    own = next((job.setting for job in jobs if job.setting.method is error.source), None)
    if own is None:
        return []
    together = error.hook in ("loss", "correct", "displace")
    pairs = zip(jobs, places, strict=True)
    return [at for job, at in pairs if job.setting is own or (together and job.setting.group == own.group)]


def _stack(tensors: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([each[name] for each in tensors]) for name in tensors[0] if _everywhere(name, tensors)}


def _everywhere(name: str, tensors: Sequence[Tensors]) -> bool:
    return all(name in each for each in tensors)
