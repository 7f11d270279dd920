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

from fedproc.lanes.local import Outcome, outcome
from fedproc.lanes.memory import halving
from fedproc.lanes.rig import Rig
from fedproc.lanes.schedule import changes, schedule
from fedproc.lanes.serial import SerialExecutor, SerialNet, serial_means
from fedproc.lanes.setting import Job
from fedproc.lanes.stacked import named
from fedproc.lanes.task import Kind
from fedproc.methods.fedavg import Local, Tensors

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
        self._rigs: dict[Key, list[Rig]] = {}
        self._streams: list[torch.cuda.Stream] = []
        self._net: tuple[object, SerialNet] | None = None

    def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Answers in the order of the jobs, each with what its client would keep."""
        outcomes: dict[int, Outcome] = {}
        groups: dict[Key, list[int]] = {}
        for place, job in enumerate(jobs):
            whole = len(job.setting.shares[job.task.client]) >= job.setting.batch_size if job.task.client >= 0 else True
            if job.task.kind is Kind.TRAIN and whole:
                groups.setdefault((job.task.trains, *job.setting.pool, *job.setting.group), []).append(place)
        if groups:
            self._rigs = {key: rigs for key, rigs in self._rigs.items() if key in groups}
        for key, places in groups.items():
            some = [jobs[place] for place in places]
            with named(some):
                outcomes.update(zip(places, halving(partial(self._train, key, some), self), strict=True))
        others = [place for place in range(len(jobs)) if place not in outcomes]
        outcomes.update(zip(others, self._serial.execute([jobs[place] for place in others]), strict=True))
        return [outcomes[place] for place in range(len(jobs))]

    def drop(self) -> None:
        """Let go of what can be made again."""
        self._rigs.clear()
        self._net = None

    def close(self) -> None:
        self.drop()
        self._serial.close()

    def _train(self, key: Key, jobs: Sequence[Job]) -> list[Outcome]:
        setting, method = jobs[0].setting, jobs[0].setting.method
        started = time.perf_counter()
        steps = [job.setting.steps(job.task) for job in jobs]
        queues = schedule(steps, self.lanes)
        needed = max(sum(steps[job] for job in queue) for queue in queues)
        rigs = self._rigs.get(key, [])
        if len(rigs) < len(queues) or rigs[0].capacity < needed:
            rigs = self._rigs[key] = [Rig([(jobs[0], 1)], setting.batch_size, 2 * needed, plain=True) for _ in queues]
        for job in jobs:
            job.setting.log_shares(job.task.client)  # counted here, on the stream that all lanes wait for
        done: dict[int, tuple[Local, Tensor]] = {}
        for lane, queue in enumerate(queues):
            with self._stream(lane, setting.device):
                rigs[lane].rewind()
                rigs[lane].enter(0, jobs[queue[0]], 0)
        ends = [sum(steps[job] for job in queue) for queue in queues]
        at = 0
        for step, moves in changes(queues, steps):
            for number in range(at, step):  # one step of every lane in turn, so that all streams have work
                for lane, end in enumerate(ends):
                    if number < end:
                        with self._stream(lane, setting.device):
                            rigs[lane].run(1)
            at = step
            for lane, finished, following in moves:
                with self._stream(lane, setting.device):
                    done[finished] = rigs[lane].leave(0, jobs[finished])
                    if following is not None:
                        rigs[lane].enter(0, jobs[following], at)
        setting.synchronise()
        self.steps_worked += sum(steps)
        self.steps_run += at * len(queues)
        trained = time.perf_counter()
        seconds = [{"train": (trained - started) * count / sum(steps)} for count in steps]
        means: list[Tensors] = [{} for _ in jobs]
        if method.prototype_pass is not None:
            net = self._plain(jobs[0])
            for place, job in enumerate(jobs):
                began = time.perf_counter()
                net.load(done[place][0].weights)
                means[place] = serial_means(net, job, method.prototype_pass == "clean")
                setting.synchronise()
                seconds[place]["prototypes"] = time.perf_counter() - began
        return [outcome(job, *done[place], means[place], seconds[place]) for place, job in enumerate(jobs)]

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
