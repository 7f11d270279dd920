"""A method's client hooks are tried out before anything is trained with them."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedproc.lanes.setting import Job
from fedproc.methods.checked import rehearse
from fedproc.methods.method import Local
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import Weights


def try_out(job: Job) -> None:
    """Hold the hooks of the job's method against themselves (`checked.rehearse`), on the CPU, once for each kind of
    thing that is sent; so a mistake shows whatever executor is used.
    """
    setting = job.setting
    if job.signature in setting.rehearsed:
        return
    state = _here(job.state)
    dtype = setting.spec.dtype
    for phase in job.task.phases:
        start = Weights.of(_here(job.start(job.state, phase).tensors()))
        local = Local(
            start=start,
            weights=replace(start, params=1.01 * start.params + 0.001),
            velocity=torch.zeros_like(start.params),
            sent=_here(job.task.payload.tensors),
            settings={name: torch.tensor(value, dtype=dtype) for name, value in job.task.settings.items()},
            state=state,
            steps=torch.tensor(max(1, job.steps(phase))),
            class_counts=job.samples.class_counts.cpu(),
            log_shares=job.samples.log_shares.cpu(),
            phase=phase.name,
        )
        rehearse(setting.method, local, setting.spec.classes, setting.method.method.client.features)
    setting.rehearsed.add(job.signature)


def _here(tensors: Tensors) -> Tensors:
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
