"""What a lane must know of an experiment to do its tasks: the network, the method, the data of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedproc.data.augment import Augmentation, Normalisation
from fedproc.data.images import Split
from fedproc.evaluate import HeldOut
from fedproc.lanes.task import Task
from fedproc.methods.fedavg import FedAvg, Tensors
from fedproc.networks import Layout, Network, NetworkSpec, Weights
from fedproc.networks.cost import Cost, cost


@dataclass(frozen=True)
class Bank:
    """Images that lie on the device as bytes, with their labels."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, split: Split, device: torch.device) -> Bank:
        return cls(torch.from_numpy(split.images).to(device), torch.from_numpy(split.labels).to(device))


@dataclass(frozen=True, eq=False)
class Setting:
    """One experiment as lanes see it. `shares` are the clients' indices into `train`."""

    method: FedAvg
    spec: NetworkSpec
    network: Network
    layout: Layout
    train: Bank
    held_out: HeldOut
    shares: Sequence[Tensor]
    augmentation: Augmentation
    normalisation: Normalisation
    batch_size: int
    momentum: float
    weight_decay: float
    model_seed: int
    device: torch.device

    @cached_property
    def cost(self) -> Cost:
        """What one image costs the network, counted once."""
        return cost(self.network, self.spec.channels, self.spec.side)

    @property
    def operations(self) -> float:
        """Of a batch forward."""
        return self.cost.operations * self.batch_size

    @property
    def pool(self) -> tuple[object, ...]:
        """Jobs whose settings agree here can run side by side as lanes of one stacked network."""
        images = (id(self.train.images), self.augmentation, self.normalisation)
        return (self.spec, images, self.batch_size, self.momentum, self.weight_decay, self.device)

    @property
    def group(self) -> tuple[object, ...]:
        """Lanes of one pool that agree here minimise the same loss and correct the gradient the same way."""
        problem = self.method.problem
        return (type(self.method), self.method.options, problem.calibrate, problem.calibrate_prototypes)

    def steps(self, task: Task) -> int:
        """Local steps of a task: whole batches only, but never none."""
        return task.epochs * max(1, len(self.shares[task.client]) // self.batch_size)

    def log_shares(self, client: int) -> Tensor:
        """log(max(n_ik, 0.5)/n_i) (K,) of a client's own training samples."""
        return self._log_shares[client]

    @cached_property
    def _log_shares(self) -> Tensor:
        """Of all clients (M, K), counted at once and without waiting for a GPU."""
        device, classes = self.device, self.spec.classes
        sizes = torch.tensor([len(share) for share in self.shares], device=device)
        labels = self.train.labels.index_select(0, torch.cat(list(self.shares)))
        owners = torch.arange(len(sizes), device=device).repeat_interleave(sizes, output_size=len(labels))
        ones = torch.ones(1, dtype=torch.float64, device=device).expand(len(labels))
        counts = ones.new_zeros(len(sizes) * classes).index_add_(0, owners * classes + labels, ones)
        return (counts.view(-1, classes).clamp(min=0.5) / sizes.unsqueeze(-1)).log().to(self.spec.dtype)

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

    @property
    def start(self) -> Weights:
        """Where the client's round begins: what it was sent, or the model of its own that it kept."""
        return Weights.of(self.kept if self.setting.method.own_models else self.task.payload.tensors)
