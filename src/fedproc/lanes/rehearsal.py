"""A method's client hooks are tried out before anything is trained with them."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedproc import optimizers
from fedproc.errors import MethodError
from fedproc.lanes.setting import Job
from fedproc.methods.method import Local
from fedproc.methods.rehearsal import rehearse
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import Weights


def try_out(job: Job) -> None:
    """Hold the hooks of the job's method against themselves (methods/rehearsal.py), on the CPU, whenever something else
    is sent, another phase comes or a number of the round becomes zero or changes its sign; so a mistake shows whatever
    executor is used.
    """
    setting, signs = job.setting, tuple((name, (value > 0) - (value < 0)) for name, value in job.task.settings.items())
    key = (job.signature, tuple(phase.name for phase in job.task.phases), signs)
    if key in setting.rehearsed:
        return
    _check_repeats(job)
    state = _here(job.state)
    dtype = setting.spec.dtype
    for phase in job.task.phases:
        start = Weights.of(_here(job.start(job.state, phase).tensors()))
        local = Local(
            start=start,
            weights=replace(start, params=1.01 * start.params + 0.001),
            optimizer=optimizers.first_state(setting.optimizer.name, start.params),
            sent=_here(job.task.payload.tensors),
            settings={name: torch.tensor(value, dtype=dtype) for name, value in job.task.settings.items()},
            state=state,
            steps=torch.tensor(max(1, job.steps(phase))),
            class_counts=job.samples.class_counts.cpu(),
            log_shares=job.samples.log_shares.cpu(),
            phase=phase,
        )
        rehearse(setting.method, local)
    setting.rehearsed.add(key)


def _check_repeats(job: Job) -> None:
    """A client's first state, and what it starts from, are asked for more than once: they must stay the same."""
    method = job.setting.method
    for hook, one, other in (
        ("first_client_state", job.state, job.state),
        *(
            ("start", job.start(job.state, phase).tensors(), job.start(job.state, phase).tensors())
            for phase in job.task.phases
        ),
    ):
        if not all(torch.equal(one[name], other[name]) for name in one):
            reason = "gives other values when it is asked again: random numbers come from `fedproc.streams`"
            raise MethodError(method.method.name, hook, reason, method)


def _here(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
