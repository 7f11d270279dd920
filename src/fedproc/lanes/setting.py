"""What a lane must know to do a client's task: the experiment's network and method, the client's data and state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from fedproc.data.augment import Augmentation, Normalisation
from fedproc.data.images import Split
from fedproc.lanes.evaluate import HeldOut
from fedproc.methods.checked_client import CheckedClient
from fedproc.networks import Layout, Network, NetworkSpec
from fedproc.networks.cost import Cost, cost
from fedproc.optimizers import Optimizer
from fedproc.protocol.payload import Tensors
from fedproc.protocol.task import Phase, Task
from fedproc.protocol.weights import Weights


@dataclass(frozen=True)
class Bank:
    """Images that lie on the device as bytes, with their labels."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, split: Split, device: torch.device) -> Bank:
        return cls(torch.from_numpy(split.images).to(device), torch.from_numpy(split.labels).to(device))


@dataclass(frozen=True, eq=False)
class ClientData:
    """What a client trains on: indices (n,) into the bank, and how many of each class (K,) with the logs of their
    shares, log(max(n_k, 0.5)/n).
    """

    indices: Tensor
    class_counts: Tensor
    log_shares: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    @staticmethod
    def of_all(shares: Sequence[Tensor], labels: Tensor, classes: int, dtype: torch.dtype) -> list[ClientData]:
        """Of all clients, counted at once and without waiting for a GPU."""
        device = labels.device
        sizes = torch.tensor([len(share) for share in shares], device=device)
        held = labels.index_select(0, torch.cat(list(shares)))
        owners = torch.arange(len(sizes), device=device).repeat_interleave(sizes, output_size=len(held))
        ones = torch.ones(1, dtype=torch.float64, device=device).expand(len(held))
        flat = ones.new_zeros(len(sizes) * classes).index_add_(0, owners * classes + held, ones)
        counts = flat.view(-1, classes)
        logs = (counts.clamp(min=0.5) / sizes.unsqueeze(-1)).log().to(dtype)
        rows = zip(shares, counts.to(dtype), logs, strict=True)
        return [ClientData(share, count, log) for share, count, log in rows]


@dataclass(frozen=True, eq=False)
class Setting:
    """One experiment as lanes see it."""

    method: CheckedClient
    spec: NetworkSpec
    network: Network
    layout: Layout
    train: Bank
    augmentation: Augmentation
    normalisation: Normalisation
    batch_size: int
    optimizer: Optimizer
    model_seed: int
    device: torch.device
    rehearsed: set[object] = field(default_factory=set)  # what the method's hooks were checked with

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
        images = (id(self.train.images), id(self.train.labels), self.augmentation, self.normalisation)
        return (self.spec, images, self.batch_size, self.optimizer, self.device, self.method.moves)

    @property
    def group(self) -> tuple[object, ...]:
        """Lanes of one pool that agree here are trained by one object: it is all that the client's half knows."""
        method = self.method.method
        return (type(method), method.options, method.client)

    def steps(self, data: ClientData, phase: Phase) -> int:
        """Local steps of a phase: whole batches only, but never none of an epoch."""
        return phase.epochs * max(1, len(data) // self.batch_size)

    def synchronise(self) -> None:
        """Wait for the device, so that a clock can be read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Job:
    """A task with what is needed to do it. The state is fetched when it is needed, since it may lie on disk."""

    task: Task
    setting: Setting
    data: ClientData | None = None
    fetch_state: Callable[[], Tensors] = dict
    held_out: HeldOut | None = None

    @property
    def state(self) -> Tensors:
        return self.fetch_state()

    @property
    def samples(self) -> ClientData:
        """What the client trains on."""
        if self.data is None:
            raise ValueError(f"client {self.task.client} has no training data here")
        return self.data

    @property
    def sent(self) -> Weights:
        return Weights.of(self.task.payload.tensors)

    def start(self, state: Tensors, phase: Phase | None = None) -> Weights:
        """What the phase starts from; of a task without phases, the client's model as it is between rounds."""
        return self.setting.method.start(self.sent, state, phase.name if phase else "")

    @property
    def evaluated(self) -> Weights:
        """What an evaluation is of: what was sent, the client's model as it is between rounds, or its second one."""
        if self.task.client < 0:
            return self.sent
        return self.setting.method.own_model(self.state, self.sent) if self.task.own else self.start(self.state)

    def steps(self, phase: Phase) -> int:
        return self.setting.steps(self.samples, phase)

    @property
    def signature(self) -> tuple[object, ...]:
        """The names and shapes of what is sent: lanes have room for that and nothing else."""
        sent = tuple((n, tuple(t.shape), t.dtype) for n, t in sorted(self.task.payload.tensors.items()))
        return (sent, tuple(sorted(self.task.settings)))

    def epochs_before(self, phase: Phase) -> int:
        """Epochs of the phases before this one that train the same model, so that none repeats another's random
        choices; two models see the same batches, and so do a gradient of all data and the training after it.
        """
        done = 0
        for each in self.task.phases:
            if each.name == phase.name:
                break
            done += each.epochs if each.second == phase.second and each.trains != "nothing" else 0
        return done
