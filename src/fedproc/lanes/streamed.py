"""Streamed lanes, for networks too large to stack: several clients' captured steps on parallel streams of one GPU.

Each lane is one client through the plain module (bf16 and channels-last where that is the precision), with no lane
axis, so convolutions and batch-norm are torch's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from fedproc.lanes.captured import CapturedLanes
from fedproc.lanes.executor import Done
from fedproc.lanes.local import Outcome, outcome
from fedproc.lanes.memory import halving
from fedproc.lanes.passes import means_of
from fedproc.lanes.schedule import changes, schedule
from fedproc.lanes.serial import SerialExecutor, SerialNet, means_kind
from fedproc.lanes.setting import Job
from fedproc.lanes.stacked import naming
from fedproc.methods.method import Local
from fedproc.protocol.payload import Tensors
from fedproc.protocol.task import Kind

Key = tuple[object, ...]


class StreamedExecutor:
    """Trains up to `lanes` clients of one method at a time, each on a stream; the rest is done one by one."""

    name = "streamed"

    def __init__(self, lanes: int, threads: int) -> None:
        self.lanes = lanes
        self.threads = threads
        self.notes: list[str] = []
        self.steps_worked = 0
        self.steps_run = 0
        self._serial = SerialExecutor(1, threads)
        self._captured: dict[Key, list[CapturedLanes]] = {}
        self._streams: list[torch.cuda.Stream] = []
        self._net: tuple[object, SerialNet] | None = None

    def execute(self, jobs: Sequence[Job], done: Done) -> None:
        """Do the jobs, and hand on outcomes as they come."""
        groups: dict[Key, list[int]] = {}
        for place, job in enumerate(jobs):
            if job.task.kind is Kind.TRAIN and len(job.samples) >= job.setting.batch_size:
                phases = tuple((phase.name, phase.trains, phase.returns, phase.frozen) for phase in job.task.phases)
                groups.setdefault((phases, *job.setting.pool, *job.setting.group, job.signature), []).append(place)
        if groups:
            self._captured = {key: lanes for key, lanes in self._captured.items() if key[0] in groups}
        for key, places in groups.items():
            some = [jobs[place] for place in places]
            with naming(some, places):
                found = halving(partial(self._train, key, some), self)
            for place, each in zip(places, found, strict=True):
                done(place, each)
        streamed = {place for places in groups.values() for place in places}
        others = [place for place in range(len(jobs)) if place not in streamed]
        self._serial.execute([jobs[place] for place in others], lambda at, found: done(others[at], found))

    def drop(self) -> None:
        """Let go of what can be made again."""
        self._captured.clear()
        self._net = None

    def close(self) -> None:
        self.drop()
        self._serial.close()

    def _train(self, key: Key, jobs: Sequence[Job]) -> list[Outcome]:
        setting = jobs[0].setting
        started = time.perf_counter()
        states: list[Tensors] = [job.state for job in jobs]
        answers: dict[int, tuple[Local, Tensor]] = {}
        total = [0] * len(jobs)
        for number in range(len(jobs[0].task.phases)):
            steps = [job.steps(job.task.phases[number]) for job in jobs]
            total = [before + now for before, now in zip(total, steps, strict=True)]
            for place, (local, losses) in self._phase(key, jobs, states, number, steps).items():
                states[place] = jobs[place].setting.method.next_state(local)
                if jobs[place].task.answers(jobs[place].task.phases[number]):
                    answers[place] = (local, losses)
        setting.synchronise()
        trained = time.perf_counter()
        seconds = [{"train": (trained - started) * count / max(1, sum(total))} for count in total]
        means: list[Tensors] = [{} for _ in jobs]
        for place, job in enumerate(jobs):
            if job.task.means is not None:
                began = time.perf_counter()
                net = self._plain(job)
                net.load(answers[place][0].weights)
                means[place] = means_of(net, job, job.task.means)
                setting.synchronise()
                seconds[place][means_kind(job)] = time.perf_counter() - began
        return [outcome(job, *answers[p], states[p], means[p], seconds[p]) for p, job in enumerate(jobs)]

    def _phase(
        self, key: Key, jobs: Sequence[Job], states: Sequence[Tensors], number: int, steps: Sequence[int]
    ) -> dict[int, tuple[Local, Tensor]]:
        """One phase of all jobs: each client as it is then, and its losses."""
        setting, phases = jobs[0].setting, [job.task.phases[number] for job in jobs]
        queues = schedule(steps, self.lanes)
        needed = max(sum(steps[job] for job in queue) for queue in queues)
        lanes = self._captured.get((key, number), [])
        if len(lanes) < len(queues) or lanes[0].capacity < needed:
            lanes = self._captured[(key, number)] = [
                CapturedLanes([(jobs[0], 1)], phases[0], setting.batch_size, 2 * max(1, needed), plain=True)
                for _ in queues
            ]
        done: dict[int, tuple[Local, Tensor]] = {}
        for lane, queue in enumerate(queues):
            with self._stream(lane, setting.device):
                lanes[lane].rewind()
                lanes[lane].enter(0, jobs[queue[0]], states[queue[0]], phases[queue[0]], 0)
        ends = [sum(steps[job] for job in queue) for queue in queues]
        at = 0
        for step, moves in changes(queues, steps):
            for each in range(at, step):  # one step of every lane in turn, so that all streams have work
                for lane, end in enumerate(ends):
                    if each < end:
                        with self._stream(lane, setting.device):
                            lanes[lane].run(1)
            at = step
            for lane, last, following in moves:
                with self._stream(lane, setting.device):
                    done[last] = lanes[lane].leave(0, jobs[last], states[last], phases[last])
                    if following is not None:
                        lanes[lane].enter(0, jobs[following], states[following], phases[following], at)
        setting.synchronise()
        self.steps_worked += sum(steps)
        self.steps_run += at * len(queues)
        return done

    def _plain(self, job: Job) -> SerialNet:
        """A module for the pass that follows training, made once."""
        if self._net is None or self._net[0] != job.setting.spec:
            self._net = (job.setting.spec, SerialNet(job.setting))
        return self._net[1]

    def _stream(self, lane: int, device: torch.device) -> AbstractContextManager[object]:
        """Work on a lane's stream, after what was begun on the main one."""
        if device.type != "cuda":
            return nullcontext()
        while len(self._streams) <= lane:
            self._streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        stream = self._streams[lane]
        stream.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(stream)
