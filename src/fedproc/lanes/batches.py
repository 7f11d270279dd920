"""Which samples a client trains on, step by step, and how they are moved: a pure function of the streams.

Shapes: S steps, L lanes, B batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc import kernels, streams
from fedproc.data.augment import PAD, Draws
from fedproc.kernels import cpu
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
    share = job.samples.indices

    def at(purpose: Purpose) -> int:
        return streams.key(setting.model_seed, purpose, task.round, task.client)

    size = min(setting.batch_size, len(share))
    steps = max(1, len(share) // setting.batch_size)
    numbers = torch.arange(epochs.start, epochs.stop, device=share.device)
    orders = streams.orders(at(Purpose.ORDER), numbers, len(share))
    positions = orders[:, : steps * size].reshape(-1, size)
    draws = setting.augmentation.draw(at, numbers.repeat_interleave(steps), positions)
    return Plan(share[positions], None, draws)


def prototype_plan(job: Job, clean: bool) -> Plan:
    """The samples that class means are taken over; a pass that is not clean is one more training epoch's batches."""
    share = job.samples.indices
    if not clean:
        return one_more_epoch(job)
    if share.device.type != "cpu":
        return clean_rows([share], GPU_CHUNK)[0]
    rows = -(-len(share) // CHUNK)
    return clean_rows([share], -(-len(share) // rows))[0]  # of equal width, so that hardly anything is padded


def one_more_epoch(job: Job) -> Plan:
    """The batches of the epoch that would follow the round's last."""
    epochs = job.task.epochs
    return training_plan(job, range(epochs, epochs + 1))


def uploaded(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """An array on the device, without making the host wait for a GPU."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def clean_rows(shares: Sequence[Tensor], width: int) -> tuple[Plan, list[int]]:
    """Every sample of every share once, in order, unmoved, in rows of one share each; and how many rows each has."""
    sizes = np.array([len(share) for share in shares])
    width = min(width, int(sizes.max()))
    each = -(-sizes // width)
    owner = np.repeat(np.arange(len(sizes)), each)
    row = np.arange(len(owner)) - np.repeat(each.cumsum() - each, each)
    place = row[:, None] * width + np.arange(width)
    mask = place < sizes[owner][:, None]
    at = (sizes.cumsum() - sizes)[owner][:, None] + np.where(mask, place, 0)
    index = torch.cat(list(shares))[uploaded(at, shares[0].device)]
    return Plan(index, uploaded(mask, shares[0].device), {}), each.tolist()


def joined(plans: Sequence[Plan]) -> tuple[Plan, list[int]]:
    """The steps of several plans one after the other, the smaller padded and masked; and how many each has."""
    size = max(plan.index.shape[1] for plan in plans)

    def together(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([F.pad(tensor, (0, size - tensor.shape[1])) for tensor in tensors])

    masks = [torch.ones_like(p.index, dtype=torch.bool) if p.mask is None else p.mask for p in plans]
    draws = {name: together([plan.draws[name] for plan in plans]) for name in plans[0].draws}
    each = [plan.index.shape[0] for plan in plans]
    return Plan(together([plan.index for plan in plans]), together(masks), draws), each


@dataclass(frozen=True)
class Step:
    """One step's images, normalised, with labels, the mask of real samples and the lanes at work (None: all)."""

    images: Tensor
    labels: Tensor
    mask: Tensor | None
    active: Tensor | None


class Feed:
    """Serves the steps of one client's plan. On a CPU a step's images last until the next one is asked for."""

    def __init__(self, setting: Setting, plan: Plan) -> None:
        self._setting, self._plan = setting, plan
        self.steps = int(plan.index.shape[0])
        self._cursor = torch.zeros(1, dtype=torch.int64, device=plan.index.device)
        self._taken = _taken(setting, plan)
        self._labels = () if self._taken is None else setting.train.labels[plan.index].unbind()

    def __getitem__(self, step: int) -> Step:
        plan = self._plan
        mask = None if plan.mask is None else plan.mask[step]
        if self._taken is not None:
            return Step(self._taken[step], self._labels[step], mask, None)
        here = slice(step, step + 1)
        draws = {name: values[here] for name, values in plan.draws.items()}
        images, labels = ready_images(self._setting, self._cursor, plan.index[here], draws)
        return Step(images, labels, mask, None)


def _taken(setting: Setting, plan: Plan) -> cpu.Batches | None:
    """The plan's images where C takes them."""
    levels, moves, images = levels_of(setting), setting.augmentation, setting.train.images
    if setting.spec.dtype != torch.float32 or not cpu.usable(levels[0]):
        return None
    return cpu.Batches(images, plan.index, plan.draws, moves.turns(images.device), levels, moves.pad, PAD)


def levels_of(setting: Setting) -> tuple[Tensor, Tensor]:
    """What an image's bytes are normalised by, for each channel."""
    return setting.normalisation.levels(setting.spec.dtype, setting.train.images.device)


def ready_images(setting: Setting, cursor: Tensor, indices: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Images (..., B, C, H, W) as the network sees them, and labels (..., B), of the step that the cursor (1,) is at,
    by indices (S, ..., B) into the bank and draws (S, ..., B).
    """
    bank, dtype = setting.train, setting.spec.dtype
    if kernels.usable(torch.empty(0, dtype=dtype, device=bank.images.device)):
        from fedproc.kernels.batch import batch

        moves, turns = setting.augmentation, setting.augmentation.turns(bank.images.device)
        return batch(bank.images, bank.labels, cursor, indices, draws, turns, levels_of(setting), moves.pad, PAD, dtype)
    index = indices.index_select(0, cursor).squeeze(0)
    moved = {name: values.index_select(0, cursor).flatten() for name, values in draws.items()}
    flat = index.flatten()
    images = setting.augmentation.apply(bank.images.index_select(0, flat), moved)
    ready = setting.normalisation.apply(images, dtype)
    return ready.view(*index.shape, *ready.shape[1:]), bank.labels.index_select(0, flat).view(index.shape)
