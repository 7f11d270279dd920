"""Serial lanes: each client calls the module plainly, one client a core.

This is also what a real site runs. A lane is a thread with one torch thread of its own: on two cores that
beat two processes and one process with two torch threads (docs/architecture.md), and a client's numbers do
not depend on how many lanes there are.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from fedproc import kernels, optimizers, streams
from fedproc.kernels import cpu
from fedproc.lanes.batches import Feed, levels_of, training_plan
from fedproc.lanes.evaluate import evaluate
from fedproc.lanes.executor import Done, LaneError, answered
from fedproc.lanes.local import Descend, Outcome, nothing, numbers, outcome, train_lanes
from fedproc.lanes.passes import means_of
from fedproc.lanes.setting import Job, Setting
from fedproc.methods.method import Local
from fedproc.networks import Network, NetworkSpec
from fedproc.networks.chain import Chain
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.task import Kind, Phase
from fedproc.protocol.weights import Weights


class SerialNet:
    """A module whose parameters, buffers and gradients are views of flat vectors.

    With bf16 the encoder's convolutions and matrices are rounded once a step, all in one piece; norms, sums
    and the update stay float32.
    """

    def __init__(self, setting: Setting) -> None:
        self.module: Network = copy.deepcopy(setting.network).to(setting.device)
        self.weights = setting.layout.read(self.module)
        self._layout = setting.layout
        self._short = kernels.precision() == "bf16" and setting.spec.dtype == torch.float32
        self._gradient = torch.zeros_like(self.weights.params)
        self._chain: Chain | None = None
        if self._short:
            return
        self._chain = Chain.of(self.module, self._layout, setting.spec.channels, setting.spec.side)
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
        by_hand = self._chain is not None and cpu.usable(images)
        self._by_hand = by_hand and torch.is_grad_enabled()
        if self._chain is None or not by_hand:
            return self.module(images, mask)  # type: ignore[no-any-return]
        if self._by_hand:
            return self._chain.forward(self.weights.params, images)
        return self._chain.outputs(self.weights.params, images)

    def frozen(self, weights: Weights, images: Tensor) -> tuple[Tensor, Tensor]:
        training = self.module.training
        self.module.eval()
        with torch.no_grad():
            if self._short:
                z, logits = self._rounded(weights, images, None)
            else:
                z, logits = functional_call(self.module, self._layout.named(weights), (images, None))
        self.module.train(training)
        return z, logits

    def _rounded(self, weights: Weights, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        named = self._layout.named(weights)
        short = self._layout.named(Weights(weights.params.to(torch.bfloat16), weights.buffers, weights.counters))
        named |= {name: short[name] for name, shape in self._layout.params if self._rounds(name, shape)}
        if torch.is_grad_enabled():
            self._leaves = [named[name].detach().requires_grad_() for name, _ in self._layout.params]
            named |= {name: leaf for (name, _), leaf in zip(self._layout.params, self._leaves, strict=True)}
        images = images.to(torch.bfloat16, memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
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
        if self._chain is not None and self._by_hand:
            self._chain.gradient(self.weights.params, self._gradient, total)
            return self._gradient
        self._gradient.zero_()
        with torch.enable_grad():
            total.backward()  # type: ignore[no-untyped-call]
        return self._gradient

    @property
    def descend(self) -> Descend | None:
        return None if self._chain is None or not cpu.usable(self._gradient) else self._descended

    def _descended(
        self, by_z: Tensor | None, by_logits: Tensor | None, beside: Callable[[], None] = nothing, /
    ) -> Tensor:
        assert self._chain is not None
        self._chain.backward(self.weights.params, self._gradient, by_z, by_logits)
        beside()
        return self._gradient

    def clean_sums(self, job: Job) -> tuple[Tensor, Tensor] | None:
        if self._chain is None or not cpu.usable(self.weights.params):
            return None
        bank, index = job.setting.train, job.samples.indices
        levels = levels_of(job.setting)
        return self._chain.class_sums(self.weights.params, bank.images, index, bank.labels[index], levels)

    def train(self, mode: bool) -> None:
        self.module.train(mode)


TOGETHER = 32  # clients whose outcomes are handed on together


class SerialExecutor:
    """Does jobs one client at a time in each of `lanes` threads."""

    name = "serial"

    def __init__(self, lanes: int, threads: int) -> None:
        self.lanes = lanes
        self.threads = threads
        self.notes: list[str] = []
        self._mine = threading.local()
        self._pool = ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(threads,))

    def execute(self, jobs: Sequence[Job], done: Done) -> None:
        """Do the jobs, and hand on outcomes in order, so many at a time: what is done with them would take the cores
        from clients that are still at work.
        """
        waiting: list[Future[Outcome] | None] = [self._pool.submit(self._do, job) for job in jobs]
        threads = torch.get_num_threads()
        try:
            for first in range(0, len(jobs), TOGETHER):
                some = range(first, min(first + TOGETHER, len(jobs)))
                found = deque(self._result(waiting[place], place, jobs[place]) for place in some)
                if some.stop < len(jobs):
                    torch.set_num_threads(1)
                for place in some:
                    waiting[place] = None  # what was handed on is not held here
                    done(place, found.popleft())
        except BaseException:
            for left in waiting:
                if left is not None:
                    left.cancel()
            raise
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)

    @staticmethod
    def _result(future: Future[Outcome] | None, place: int, job: Job) -> Outcome:
        assert future is not None
        try:
            return future.result()
        except Exception as error:
            raise LaneError([place], job.task, error) from error

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _net(self, setting: Setting) -> SerialNet:
        """This thread's module for the network, made once."""
        nets: dict[tuple[NetworkSpec, int, torch.device, str], SerialNet] = self._mine.__dict__.setdefault("nets", {})
        at = (setting.spec, setting.model_seed if setting.spec.foreign else 0, setting.device, kernels.precision())
        if at not in nets:
            nets.clear()  # one network per thread is alive at a time
            nets[at] = SerialNet(setting)
        return nets[at]

    def _do(self, job: Job) -> Outcome:
        setting = job.setting
        here = torch.cuda.device(setting.device) if setting.device.type == "cuda" else nullcontext()
        with here:  # a thread begins on the first GPU, and Triton's kernels run on the thread's
            return self._alone(job) if setting.spec.foreign else self._work(job)

    def _alone(self, job: Job) -> Outcome:
        """A network of a person's own may draw from torch's generator: its numbers are those of the task."""
        task, setting = job.task, job.setting
        with torch.random.fork_rng(devices=[setting.device] if setting.device.type == "cuda" else []):
            at = streams.key(setting.model_seed, streams.Purpose.TORCH, task.round, task.client)
            torch.manual_seed(streams.torch_seed(at))
            return self._work(job)

    def _work(self, job: Job) -> Outcome:
        return work_alone(self._net(job.setting), job)


def work_alone(net: SerialNet, job: Job) -> Outcome:
    """A client's task, through the plain module."""
    task, setting = job.task, job.setting
    if task.kind is Kind.TRAIN:
        return _train(net, job)
    started = time.perf_counter()
    if task.kind is Kind.EVALUATE:
        net.load(job.evaluated)
        payload = _evaluate(net, job)
        setting.synchronise()
        return answered(payload, {"evaluation": time.perf_counter() - started})
    if task.kind is Kind.CLASS_MEANS:
        net.load(job.sent)
        payload = Payload(means_of(net, job, task.means or "clean", task.covariances), {"samples": len(job.samples)})
        setting.synchronise()
        return answered(payload, {"prototypes": time.perf_counter() - started})
    raise ValueError(f"{task.kind}: lanes do not do this")


def _evaluate(net: SerialNet, job: Job) -> Payload:
    setting, sent = job.setting, job.task.payload.tensors
    if job.held_out is None:
        raise ValueError(f"client {job.task.client} has no images to evaluate on")
    net.train(False)
    return evaluate(
        lambda images: net.forward(images, None),
        job.held_out,
        setting.normalisation,
        setting.spec.dtype,
        setting.spec.classes,
        sent["prototypes"],
        sent["known"],
    )


def _train(net: SerialNet, job: Job) -> Outcome:
    task, setting, state = job.task, job.setting, job.state
    started = time.perf_counter()
    answer: tuple[Local, Tensor] | None = None
    for phase in task.phases:
        local, losses = _phase(net, job, phase, state)
        state = setting.method.next_state(local)
        if task.answers(phase):
            answer = (local, losses)
    assert answer is not None
    setting.synchronise()
    trained = time.perf_counter()
    seconds = {"train": trained - started}
    means: Tensors = {}
    if task.means is not None:
        if not task.answers(task.phases[-1]):
            net.load(answer[0].weights)
        means = means_of(net, job, task.means)
        setting.synchronise()
        seconds[means_kind(job)] = time.perf_counter() - trained
    return outcome(job, *answer, state, means, seconds)


def means_kind(job: Job) -> str:
    """What the time for class means goes under: those that only observe are diagnostics."""
    return "diagnostics" if "class_means" in job.task.expects.observe else "prototypes"


def _phase(net: SerialNet, job: Job, phase: Phase, state: Tensors) -> tuple[Local, Tensor]:
    """Train one phase of a client's round; returns the client as it is then, and its losses."""
    setting, first = job.setting, job.epochs_before(phase)
    start = job.start(state, phase)
    net.load(start)
    feed = Feed(setting, training_plan(job, range(first, first + phase.epochs)))
    carried = setting.method.start_optimizer(state, phase.name, start.params)
    if carried is None:
        carried = optimizers.first_state(setting.optimizer.name, start.params)
    local = Local(
        start=start,
        weights=net.weights,
        optimizer={name: tensor.clone() for name, tensor in carried.items()},
        sent=job.task.payload.tensors,
        settings=numbers(job),
        state=state,
        steps=torch.tensor(feed.steps, device=setting.device),
        class_counts=job.samples.class_counts,
        log_shares=job.samples.log_shares,
        phase=phase,
    )
    losses = train_lanes(net, feed, job, phase, local)
    with torch.no_grad():
        return replace(local, weights=local.weights.clone()), losses
