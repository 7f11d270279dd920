"""Serial lanes: each client calls the module plainly, one client a core.

This is also what a real site runs. A lane is a thread with one torch thread of its own: on two cores that
beat two processes and one process with two torch threads (docs/architecture.md), and a client's numbers do
not depend on how many lanes there are.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from fedproc import kernels, streams
from fedproc.errors import RunError
from fedproc.evaluate import evaluate
from fedproc.lanes.batches import Feed, prototype_plan, training_plan
from fedproc.lanes.local import Outcome, numbers, outcome, prototype_lanes, train_lanes
from fedproc.lanes.setting import Job, Setting
from fedproc.lanes.task import Answer, Kind
from fedproc.methods.fedavg import Local, Tensors
from fedproc.networks import Network, NetworkSpec, Weights
from fedproc.payload import Payload


class SerialNet:
    """A module whose parameters, buffers and gradients are views of flat vectors.

    With bf16 on a GPU the encoder's convolutions and matrices are rounded once a step, all in one piece; norms, sums
    and the update stay float32.
    """

    def __init__(self, setting: Setting) -> None:
        self.module: Network = copy.deepcopy(setting.network).to(setting.device)
        self.weights = setting.layout.read(self.module)
        self._layout = setting.layout
        self._short = kernels.precision() == "bf16" and setting.device.type == "cuda"
        self._gradient = torch.zeros_like(self.weights.params)
        if self._short:
            return
        setting.layout.bind(self.module, self.weights)
        named = setting.layout.named(Weights(self._gradient, self.weights.buffers, self.weights.counters))
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                parameter.grad = named[name]

    def load(self, weights: Weights) -> None:
        with torch.no_grad():
            for own, given in zip(self.weights.tensors().values(), weights.tensors().values(), strict=True):
                own.copy_(given)

    def forward(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        if self._short:
            return self._rounded(self.weights, images, mask)
        z, logits = self.module(images, mask)
        return z, logits

    def embed(self, weights: Weights, images: Tensor) -> Tensor:
        training = self.module.training
        self.module.eval()
        with torch.no_grad():
            if self._short:
                z = self._rounded(weights, images, None)[0]
            else:
                z = functional_call(self.module, self._layout.named(weights), (images, None))[0]
        self.module.train(training)
        return z

    def _rounded(self, weights: Weights, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        named = self._layout.named(weights)
        short = self._layout.named(Weights(weights.params.to(torch.bfloat16), weights.buffers, weights.counters))
        named |= {name: short[name] for name, shape in self._layout.params if self._rounds(name, shape)}
        if torch.is_grad_enabled():
            self._leaves = [named[name].detach().requires_grad_() for name, _ in self._layout.params]
            named |= {name: leaf for (name, _), leaf in zip(self._layout.params, self._leaves, strict=True)}
        images = images.to(torch.bfloat16, memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            z, logits = functional_call(self.module, named, (images, mask))
        return z.float(), logits.float()

    @staticmethod
    def _rounds(name: str, shape: tuple[int, ...]) -> bool:
        return name.startswith("encoder.") and len(shape) > 1

    def gradient(self, total: Tensor) -> Tensor:
        if self._short:
            with torch.enable_grad():
                found = torch.autograd.grad(total, self._leaves, materialize_grads=True)
            self._layout.write(self._gradient, found)
            return self._gradient
        self._gradient.zero_()
        with torch.enable_grad():
            total.backward()  # type: ignore[no-untyped-call]
        return self._gradient

    def train(self, mode: bool) -> None:
        self.module.train(mode)


class SerialExecutor:
    """Does jobs one client at a time in each of `lanes` threads."""

    name = "serial"

    def __init__(self, lanes: int, threads: int) -> None:
        self.lanes = lanes
        self.threads = threads
        self.notes: list[str] = []
        self._mine = threading.local()
        self._pool = ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(threads,))

    def execute(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Answers in the order of the jobs, each with what its client would keep."""
        waiting = [self._pool.submit(self._do, job) for job in jobs]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            for future in waiting:
                future.cancel()
            raise

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _net(self, setting: Setting) -> SerialNet:
        """This thread's module for the network, made once."""
        nets: dict[tuple[NetworkSpec, int, torch.device, str], SerialNet] = self._mine.__dict__.setdefault("nets", {})
        at = (setting.spec, setting.model_seed if setting.spec.foreign else 0, setting.device, kernels.precision())
        if at not in nets:
            nets.clear()  # one network a thread is alive at a time
            nets[at] = SerialNet(setting)
        return nets[at]

    def _do(self, job: Job) -> Outcome:
        task, setting = job.task, job.setting
        here = torch.cuda.device(setting.device) if setting.device.type == "cuda" else nullcontext()
        try:
            with here:  # a thread begins on the first GPU, and Triton's kernels run on the thread's
                return self._alone(job) if setting.spec.foreign else self._work(job)
        except Exception as error:
            raise RunError(f"client {task.client}, round {task.round + 1}, {task.kind}: {error}") from error

    def _alone(self, job: Job) -> Outcome:
        """A network of a person's own may draw from torch's generator: its numbers are those of the task."""
        task, setting = job.task, job.setting
        with torch.random.fork_rng(devices=[setting.device] if setting.device.type == "cuda" else []):
            at = streams.key(setting.model_seed, streams.Purpose.TORCH, task.round, task.client)
            torch.manual_seed(streams.torch_seed(at))
            return self._work(job)

    def _work(self, job: Job) -> Outcome:
        task, setting = job.task, job.setting
        net = self._net(setting)
        net.load(job.start if task.kind is Kind.TRAIN else Weights.of(task.payload.tensors))
        started = time.perf_counter()
        if task.kind is Kind.EVALUATE:
            payload = _evaluate(net, job)
            setting.synchronise()
            return Answer(task, payload, seconds={"evaluation": time.perf_counter() - started}), {}
        if task.kind is Kind.PROTOTYPES:
            payload = Payload(serial_means(net, job, task.clean), {"samples": len(setting.shares[task.client])})
            setting.synchronise()
            return Answer(task, payload, seconds={"prototypes": time.perf_counter() - started}), {}
        return _train(net, job)


def _evaluate(net: SerialNet, job: Job) -> Payload:
    setting, sent = job.setting, job.task.payload.tensors
    net.train(False)
    return evaluate(
        lambda images: net.forward(images, None),
        setting.held_out,
        setting.normalisation,
        setting.spec.dtype,
        setting.spec.classes,
        sent["prototypes"],
        sent["known"],
    )


def _train(net: SerialNet, job: Job) -> Outcome:
    task, setting = job.task, job.setting
    started = time.perf_counter()
    method = setting.method
    feed = Feed(setting, training_plan(job, range(task.epochs)))
    local = Local(
        start=job.start,
        weights=net.weights,
        velocity=job.kept["velocity"].clone() if method.keeps_momentum else torch.zeros_like(net.weights.params),
        sent=task.payload.tensors,
        settings=numbers(job),
        kept=job.kept,
        steps=torch.tensor(feed.steps, device=setting.device),
        log_shares=setting.log_shares(task.client),
    )
    losses = train_lanes(net, feed, job, local)
    setting.synchronise()
    trained = time.perf_counter()
    seconds = {"train": trained - started}
    with torch.no_grad():
        weights = local.weights.clone()
    local = replace(local, weights=weights)
    means: Tensors = {}
    if method.prototype_pass is not None:
        means = serial_means(net, job, clean=method.prototype_pass == "clean")
        setting.synchronise()
        seconds["prototypes"] = time.perf_counter() - trained
    return outcome(job, local, losses, means, seconds)


def serial_means(net: SerialNet, job: Job, clean: bool) -> Tensors:
    """Class means and counts of the job's samples under the net's weights."""
    feed = Feed(job.setting, prototype_plan(job, clean))
    means, counts = prototype_lanes(net, feed, job.setting.spec.classes, clean)
    return {"class_means": means, "class_counts": counts}
