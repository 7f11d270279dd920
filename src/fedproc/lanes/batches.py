"""Which samples a client trains on, step by step, and how they are moved: a pure function of the streams.

Shapes: S steps, L lanes, B batch. A plan is one client's; a feed serves one client (S, B) or L side by
side (S, L, B), where the shorter and smaller are padded and masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedproc import kernels, streams
from fedproc.data.augment import PAD, Draws
from fedproc.lanes.setting import Job, Setting
from fedproc.streams import Purpose

CHUNK, GPU_CHUNK = 256, 2048  # images a forward pass where no gradient is needed


@dataclass(frozen=True)
class Plan:
    """index (S, B) into the bank, mask (S, B) of real samples or None, and the moves of each sample."""

    index: Tensor
    mask: Tensor | None
    draws: Draws


def training_plan(job: Job, epochs: range) -> Plan:
    """Shuffled whole batches of each epoch; a client smaller than a batch trains on one of what it has."""
    setting, task = job.setting, job.task
    share = setting.shares[task.client]
    at = {p: streams.key(setting.model_seed, p, task.round, task.client) for p in Purpose}
    size = min(setting.batch_size, len(share))
    steps = max(1, len(share) // setting.batch_size)
    numbers = torch.arange(epochs.start, epochs.stop, device=share.device)
    keys = streams.fold_tensor(at[Purpose.ORDER], numbers).unsqueeze(-1)
    orders = streams.fold_tensor(keys, torch.arange(len(share), device=share.device)).argsort(dim=-1, stable=True)
    positions = orders[:, : steps * size].reshape(-1, size)
    draws = setting.augmentation.draw(at, numbers.repeat_interleave(steps).unsqueeze(-1), positions)
    return Plan(share[positions], None, draws)


def clean_plan(index: Tensor) -> Plan:
    """Every sample once, in order, unmoved; the last chunk is padded."""
    chunk = CHUNK if index.device.type == "cpu" else GPU_CHUNK
    steps = -(-len(index) // chunk)
    size = min(chunk, len(index))
    padded = torch.cat([index, index[:1].expand(steps * size - len(index))]).view(steps, size)
    mask = (torch.arange(steps * size, device=index.device) < len(index)).view(steps, size)
    return Plan(padded, mask, {})


def prototype_plan(job: Job, clean: bool) -> Plan:
    """The samples that class means are taken over; a pass that is not clean is one more training epoch's batches."""
    epochs = job.task.epochs
    return clean_plan(job.setting.shares[job.task.client]) if clean else training_plan(job, range(epochs, epochs + 1))


@dataclass(frozen=True)
class Step:
    """One step's images, normalised, with labels, the mask of real samples and the lanes at work (None: all)."""

    images: Tensor
    labels: Tensor
    mask: Tensor | None
    active: Tensor | None


class Feed:
    """Serves the steps of one client's plan, or of several clients' stacked into lanes."""

    def __init__(self, setting: Setting, plans: Sequence[Plan], stacked: bool) -> None:
        self._setting = setting
        plan, self._active = _stacked(plans) if stacked else (plans[0], None)
        self._index, self._mask, self._draws = plan.index, plan.mask, plan.draws
        self.steps = int(self._index.shape[0])
        self._cursor = torch.zeros(1, dtype=torch.int64, device=self._index.device)

    def __getitem__(self, step: int) -> Step:
        draws = {name: values[step : step + 1] for name, values in self._draws.items()}
        images, labels = ready_images(self._setting, self._cursor, self._index[step : step + 1], draws)
        mask = None if self._mask is None else self._mask[step]
        return Step(images, labels, mask, None if self._active is None else self._active[step])


def ready_images(setting: Setting, cursor: Tensor, indices: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Images (..., B, C, H, W) as the network sees them, and labels (..., B), of the step that the cursor (1,) is at,
    by indices (S, ..., B) into the bank and draws (S, ..., B).
    """
    bank, dtype = setting.train, setting.spec.dtype
    if kernels.usable(torch.empty(0, dtype=dtype, device=bank.images.device)):
        from fedproc.kernels.batch import batch

        moves, levels = setting.augmentation, setting.normalisation.levels(dtype, bank.images.device)
        turns = moves.turns(bank.images.device)
        return batch(bank.images, bank.labels, cursor, indices, draws, turns, levels, moves.pad, PAD, dtype)
    index = indices.index_select(0, cursor).squeeze(0)
    moved = {name: values.index_select(0, cursor).flatten() for name, values in draws.items()}
    flat = index.flatten()
    images = setting.augmentation.apply(bank.images.index_select(0, flat), moved)
    ready = setting.normalisation.apply(images, dtype)
    return ready.view(*index.shape, *ready.shape[1:]), bank.labels.index_select(0, flat).view(index.shape)


def _stacked(plans: Sequence[Plan]) -> tuple[Plan, Tensor | None]:
    """One plan (S, L, B), and which lanes are at work in each step (S, L)."""
    steps = max(plan.index.shape[0] for plan in plans)
    size = max(plan.index.shape[1] for plan in plans)

    def stacked(tensors: Sequence[Tensor]) -> Tensor:
        full = tensors[0].new_zeros(steps, len(tensors), size)
        for lane, tensor in enumerate(tensors):
            full[: tensor.shape[0], lane, : tensor.shape[1]] = tensor
        return full

    masks = [torch.ones_like(p.index, dtype=torch.bool) if p.mask is None else p.mask for p in plans]
    mask = stacked(masks)
    draws = {name: stacked([plan.draws[name] for plan in plans]) for name in plans[0].draws}
    return Plan(stacked([plan.index for plan in plans]), mask, draws), mask.any(dim=-1)
