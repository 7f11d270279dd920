"""What a lane must know of an experiment to do its tasks: the network, the method, the data of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedproc.data.augment import Augmentation, Normalisation
from fedproc.data.images import Split
from fedproc.lanes.task import Task
from fedproc.methods.fedavg import FedAvg, Tensors
from fedproc.networks import Layout, Network, NetworkSpec


@dataclass(frozen=True)
class Bank:
    """Images that lie on the device as bytes, with their labels."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, split: Split, device: torch.device) -> Bank:
        return cls(torch.from_numpy(split.images).to(device), torch.from_numpy(split.labels).to(device))


@dataclass(frozen=True)
class Setting:
    """One experiment as lanes see it. `shares` are the clients' indices into `train`."""

    method: FedAvg
    spec: NetworkSpec
    network: Network
    layout: Layout
    train: Bank
    held_out: Bank
    held_out_indices: Tensor
    shares: Sequence[Tensor]
    augmentation: Augmentation
    normalisation: Normalisation
    epochs: int
    batch_size: int
    momentum: float
    weight_decay: float
    model_seed: int
    device: torch.device

    @property
    def group(self) -> tuple[object, ...]:
        """Jobs whose settings agree here can run side by side as lanes of one stacked network."""
        method = (type(self.method), self.method.options)
        images = (id(self.train.images), self.augmentation, self.normalisation)
        return (self.spec, method, images, self.batch_size, self.momentum, self.weight_decay, self.device)

    def steps(self, client: int) -> int:
        """Local steps a round: whole batches only, but never none."""
        return self.epochs * max(1, len(self.shares[client]) // self.batch_size)

    def synchronise(self) -> None:
        """Wait for the device, so that a clock can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Job:
    """A task with the setting to do it in and what its client kept from its last round."""

    task: Task
    setting: Setting
    kept: Tensors = field(default_factory=dict)
