"""Lanes whose state lies in tensors that stay where they are, so that one step can be captured and replayed.

Clients come and go between steps by copies into their lane; the step itself reads its batch by a counter on the
device. On a GPU it is one CUDA graph, replayed without the host's help; elsewhere it is called. There are L lanes
of one stacked network, in sections by method, or no lane axis at all: one client through the plain module.
Shapes: S steps, L lanes, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedproc import optimizers
from fedproc.kernels.forks import in_turn, side_by_side
from fedproc.lanes.batches import Plan, Step, ready_images, training_plan
from fedproc.lanes.local import Section, Stepper, numbers
from fedproc.lanes.serial import SerialNet
from fedproc.lanes.setting import Job
from fedproc.lanes.stacked_net import StackedNet
from fedproc.methods.method import Local
from fedproc.protocol.payload import Tensors
from fedproc.protocol.task import Phase
from fedproc.protocol.weights import Weights

WARM_UP = 3


class CapturedLanes:
    """`capacity` steps of a phase with batches of `batch`, for clients like `parts`: a job and its number of lanes
    each.

    A plain lane has one client at a time and no masks: each of its batches is whole.
    """

    def __init__(
        self, parts: Sequence[tuple[Job, int]], phase: Phase, batch: int, capacity: int, plain: bool = False
    ) -> None:
        job, setting = parts[0][0], parts[0][0].setting
        device, dtype = setting.device, setting.spec.dtype
        self.capacity, self.batch = capacity, batch
        self.lanes = [lanes for _, lanes in parts]
        self._setting, self._plain, self._phase = setting, plain, phase
        lead = () if plain else (sum(self.lanes),)

        def spread(tensor: Tensor, shape: tuple[int, ...] = lead) -> Tensor:
            return tensor.detach().to(device).expand((*shape, *tensor.shape)).clone()

        start = job.sent.tensors()
        stacked = Weights.of({name: spread(tensor) for name, tensor in start.items()})
        self._net: StackedNet | SerialNet = SerialNet(setting) if plain else StackedNet(setting, stacked)
        self._start = stacked if plain else Weights.of({name: spread(tensor) for name, tensor in start.items()})
        self._optimizer = optimizers.first_state(setting.optimizer.name, self._start.params)
        self._lr = spread(torch.zeros((), dtype=dtype))
        self._steps = torch.ones(lead, dtype=torch.int64, device=device)
        self._log_shares = spread(torch.zeros(setting.spec.classes, dtype=dtype))
        self._class_counts = torch.zeros_like(self._log_shares)
        self._sections: list[Section] = []
        self._owner: list[tuple[int, int]] = []  # of each lane: its section and its place there
        for number, (example, lanes) in enumerate(parts):
            first = len(self._owner)
            at = ... if plain else slice(first, first + lanes)
            self._owner += [(number, place) for place in range(lanes)]
            self._sections.append(self._section(example, at, () if plain else (lanes,)))
        self._stepper = Stepper(self._net, self._sections, phase, self._lr, self._optimizer)
        self._cursor = torch.zeros(1, dtype=torch.int64, device=device)
        shape = (capacity, *lead, batch)
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)
        self._mask = torch.zeros(0 if plain else shape, dtype=torch.bool, device=device)
        example_draws = setting.augmentation.draw_nothing(device)
        self._draws = {name: torch.zeros(shape, dtype=torch.int16, device=device) for name in example_draws}
        # what a captured kernel reads must live as long as the graph
        images = setting.train.images.device
        self._held = (setting.normalisation.levels(dtype, images), setting.augmentation.turns(images))
        self._graph = self._capture() if device.type == "cuda" else None

    def _section(self, job: Job, at: Any, lead: tuple[int, ...]) -> Section:
        def spread(tensor: Tensor) -> Tensor:
            return tensor.detach().to(job.setting.device).expand((*lead, *tensor.shape)).clone()

        weights = {name: tensor.detach()[at] for name, tensor in self._net.weights.tensors().items()}
        local = Local(
            start=Weights.of({name: tensor[at] for name, tensor in self._start.tensors().items()}),
            weights=Weights.of(weights),
            optimizer={name: tensor[at] for name, tensor in self._optimizer.items()},
            sent={name: spread(tensor) for name, tensor in job.task.payload.tensors.items()},
            settings={**{name: spread(number) for name, number in numbers(job).items()}, "lr": self._lr[at]},
            state={name: spread(tensor) for name, tensor in job.state.items()},
            steps=self._steps[at],
            class_counts=self._class_counts[at],
            log_shares=self._log_shares[at],
            phase=self._phase,
        )
        return Section(at, job, local)

    def _step(self) -> None:
        at = self._cursor
        (mask, active), (images, labels) = side_by_side(
            self._at_work, partial(ready_images, self._setting, at, self._index, self._draws)
        )
        self._stepper(Step(images, labels, mask, active))
        at += 1

    def _at_work(self) -> tuple[Tensor | None, Tensor | None]:
        """The mask of the step's samples, and the lanes that have some; None: all."""
        if self._plain:
            return None, None
        mask = self._mask.index_select(0, self._cursor).squeeze(0)
        return mask, mask.any(dim=-1)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Nobody is in the lanes yet, so what the steps of the warm-up change does not matter.

        The stream is their own: cuBLAS keeps a workspace for each, and plain lanes are replayed at the same time.
        They do nothing at once within a step, so that each takes one of the 32 that torch has.
        """
        own = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        short = torch.backends.cudnn.allow_tf32
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=short):  # chooses grouped kernels here
            own.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(own):
                for _ in range(WARM_UP):
                    self._step()
                    self._cursor.zero_()
            torch.cuda.current_stream().wait_stream(own)
            with in_turn() if self._plain else nullcontext(), torch.cuda.graph(graph, stream=own):
                self._step()
        return graph

    def rewind(self) -> None:
        """Go back to the first step, with nobody in any."""
        self._mask.zero_()
        self._cursor.zero_()

    def _feed(self, lane: int, at: int, plan: Plan) -> None:
        """Lay a client's batches into its lane, from step `at` on."""
        steps, size = plan.index.shape
        place: Any = slice(at, at + steps) if self._plain else (slice(at, at + steps), lane, slice(size))
        self._index[place] = plan.index
        for name, values in plan.draws.items():
            self._draws[name][place] = values
        if not self._plain:
            self._mask[place] = True

    @torch.no_grad()
    def enter(self, lane: int, job: Job, state: Tensors, phase: Phase, at: int) -> None:
        """Put a client into a lane, to begin with step `at`."""
        first = job.epochs_before(phase)
        self._feed(lane, at, training_plan(job, range(first, first + phase.epochs)))
        number, among = self._owner[lane]
        here, place = (..., ...) if self._plain else (lane, among)
        local, method = self._sections[number].local, job.setting.method
        start = job.start(state, phase)
        for name, tensor in start.tensors().items():
            self._start.tensors()[name][here].copy_(tensor)
            self._net.weights.tensors()[name][here].copy_(tensor)
        for held, given in ((local.sent, job.task.payload.tensors), (local.state, state)):
            for name, tensor in given.items():
                held[name][place].copy_(tensor)
        for name, value in job.task.settings.items():
            local.settings[name][place].fill_(value)
        carried = method.start_optimizer(state, phase.name, start.params)
        for name, tensor in self._optimizer.items():
            if carried is None:
                tensor[here].zero_()
            else:
                tensor[here].copy_(carried[name])
        self._steps[here].fill_(job.steps(phase))
        self._class_counts[here].copy_(job.samples.class_counts)
        self._log_shares[here].copy_(job.samples.log_shares)
        self._stepper.clear(here, number, place)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self._graph is None:
                self._step()
            else:
                self._graph.replay()

    @torch.no_grad()
    def leave(self, lane: int, job: Job, state: Tensors, phase: Phase) -> tuple[Local, Tensor]:
        """Take what a client trained out of its lane: the client as it is then, and its mean losses."""
        number, among = self._owner[lane]
        here, place = (..., ...) if self._plain else (lane, among)
        weights = {name: tensor[here].detach().clone() for name, tensor in self._net.weights.tensors().items()}
        local = Local(
            start=job.start(state, phase),
            weights=Weights.of(weights),
            optimizer={name: tensor[here].clone() for name, tensor in self._optimizer.items()},
            sent=job.task.payload.tensors,
            settings=numbers(job),
            state=state,
            steps=self._steps[here].clone(),
            class_counts=job.samples.class_counts,
            log_shares=job.samples.log_shares,
            phase=phase,
        )
        return local, self._stepper.losses(here, number, place).clone()
