"""A rig: L lanes of one group in tensors that stay where they are, so that one step can be captured and replayed.

Clients come and go between steps by copies into their lane; the step itself reads its batch by a counter on the
device. On a GPU it is one CUDA graph, replayed without a word from the host; elsewhere it is called.
Shapes: S steps, L lanes, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc.lanes.batches import Plan, Step, ready_images
from fedproc.lanes.local import Stepper
from fedproc.lanes.setting import Job
from fedproc.lanes.stacked_net import StackedNet
from fedproc.methods.fedavg import Local
from fedproc.networks import Weights

WARM_UP = 3


@dataclass(frozen=True)
class Trained:
    """What a client's lane held when it was done."""

    weights: Weights
    velocity: Tensor
    losses: Tensor


class Rig:
    """`capacity` steps of `lanes` clients like `job`, with batches of `batch`."""

    def __init__(self, job: Job, lanes: int, batch: int, capacity: int) -> None:
        setting, device = job.setting, job.setting.device
        self.capacity = capacity
        self._job = job

        def spread(tensor: Tensor) -> Tensor:
            return tensor.detach().to(device).expand(lanes, *tensor.shape).clone()

        start = job.start.tensors()
        self._net = StackedNet(setting, Weights.of({name: spread(tensor) for name, tensor in start.items()}))
        number = torch.zeros((), dtype=setting.spec.dtype)
        self._local = Local(
            start=Weights.of({name: spread(tensor) for name, tensor in start.items()}),
            weights=self._net.weights,
            velocity=spread(torch.zeros_like(job.start.params)),
            sent={name: spread(tensor) for name, tensor in job.task.payload.tensors.items()},
            settings={name: spread(number) for name in job.task.settings},
            kept={name: spread(tensor) for name, tensor in job.kept.items()},
            steps=torch.ones(lanes, dtype=torch.int64, device=device),
            log_shares=spread(torch.zeros(setting.spec.classes, dtype=setting.spec.dtype)),
        )
        self._stepper = Stepper(self._net, job, self._local)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        shape = (capacity, lanes, batch)
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)
        self._mask = torch.zeros(shape, dtype=torch.bool, device=device)
        example = setting.augmentation.draw_nothing(device)
        self._draws = {name: torch.zeros(shape, dtype=torch.int16, device=device) for name in example}
        self._graph = self._capture() if device.type == "cuda" else None

    def _step(self) -> None:
        at = self._cursor
        mask = self._mask.index_select(0, at).squeeze(0)
        images, labels = ready_images(self._job.setting, at, self._index, self._draws)
        self._stepper(Step(images, labels, mask, mask.any(dim=-1)))
        at += 1

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Nobody is in the lanes yet and every sample is masked, so the steps of the warm-up change nothing."""
        short = torch.backends.cudnn.allow_tf32
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=True, allow_tf32=short
        ):  # grouped kernels are chosen here
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self._step()
                    self._cursor.zero_()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._step()
        return graph

    def feed(self, queues: Sequence[Sequence[int]], plans: Sequence[Plan]) -> None:
        """Lay the batches of each lane's clients one after the other, and go back to the first step."""
        self._mask.zero_()
        self._cursor.zero_()
        for lane, queue in enumerate(queues):
            at = 0
            for job in queue:
                plan = plans[job]
                steps, size = plan.index.shape
                self._index[at : at + steps, lane, :size] = plan.index
                self._mask[at : at + steps, lane, :size] = True
                for name, values in plan.draws.items():
                    self._draws[name][at : at + steps, lane, :size] = values
                at += steps

    @torch.no_grad()
    def enter(self, lane: int, job: Job) -> None:
        """Put a client into a lane."""
        local, method = self._local, job.setting.method
        for name, tensor in job.start.tensors().items():
            local.start.tensors()[name][lane].copy_(tensor)
            local.weights.tensors()[name][lane].copy_(tensor)
        for held, given in ((local.sent, job.task.payload.tensors), (local.kept, job.kept)):
            for name, tensor in given.items():
                held[name][lane].copy_(tensor)
        for name, value in job.task.settings.items():
            local.settings[name][lane].fill_(value)
        if method.keeps_momentum:
            local.velocity[lane].copy_(job.kept["velocity"])
        else:
            local.velocity[lane].zero_()
        local.steps[lane].fill_(job.setting.steps(job.task))
        local.log_shares[lane].copy_(job.setting.log_shares(job.task.client))
        self._stepper.clear(lane)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()

    @torch.no_grad()
    def leave(self, lane: int) -> Trained:
        """Take what a client trained out of its lane."""
        weights = {name: tensor[lane].detach().clone() for name, tensor in self._local.weights.tensors().items()}
        return Trained(Weights.of(weights), self._local.velocity[lane].clone(), self._stepper.losses()[lane])
