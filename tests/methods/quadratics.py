"""Federated learning small enough for paper and pencil: every client minimises 0.5 h (w - b)^2.

The real round loop, the real local training and the real client store run on a network that is its own
parameters: z = w, and each client's quadratic stands in for cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedproc.lanes.batches import Step
from fedproc.lanes.local import train_lanes
from fedproc.methods.fedavg import Batch, FedAvg, Local, Problem
from fedproc.protocol.payload import Payload, check
from fedproc.protocol.rounds import Plan, Progress, State, first_state, play
from fedproc.protocol.task import Answer, Kind, Task
from fedproc.protocol.weights import Weights
from fedproc.runs.client_states import ClientStore


@dataclass(frozen=True)
class Client:
    """h and b of its quadratic, samples, steps a round, and the one class it holds."""

    h: Sequence[float]
    b: Sequence[float]
    samples: int = 1
    steps: int = 1
    label: int = 0


class Quadratic:
    """Puts the client's quadratic in the place of cross-entropy; logits carry h and b."""

    def cross_entropies(self, batch: Batch, local: Local) -> Tensor:
        size = batch.z.shape[-1]
        h, b = batch.logits[..., :size], batch.logits[..., size:]
        return 0.5 * (h * (batch.z - b) ** 2).sum(dim=-1)


class Net:
    """z is the parameters themselves."""

    def __init__(self, weights: Weights) -> None:
        self.weights = Weights(
            weights.params.clone().requires_grad_(), weights.buffers.clone(), weights.counters.clone()
        )

    def forward(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.weights.params.expand(len(images), -1), images

    def embed(self, weights: Weights, images: Tensor) -> Tensor:
        return weights.params.expand(len(images), -1)

    def gradient(self, total: Tensor) -> Tensor:
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(total, self.weights.params)
        return gradient

    def train(self, mode: bool) -> None: ...


class Steps:
    """The same sample in every step."""

    def __init__(self, client: Client, steps: int) -> None:
        self.steps = steps
        images = torch.tensor([[*client.h, *client.b]], dtype=torch.float64)
        self._step = Step(images, torch.tensor([client.label]), None, None)

    def __getitem__(self, number: int) -> Step:
        return self._step


@dataclass
class World:
    """A method on quadratics: `states` after the start and after each round, and what clients keep."""

    method: type[FedAvg]
    clients: Sequence[Client]
    start: Sequence[float]
    rounds: int = 2
    lr: float = 0.5
    momentum: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    problem: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind: Any = type(f"Quadratic{self.method.__name__}", (Quadratic, self.method), {})
        sizes = tuple(client.samples for client in self.clients)
        problem = Problem(self.rounds, 2, len(self.start), 0, torch.float64, 1, sizes, self.momentum, **self.problem)
        made: FedAvg = kind(self.method.options_type(**self.options), problem)
        given = {"classifier": slice(1, 2), "merge": made.merge, "server_step": made.server_step, **self.plan}
        plan = Plan(made, made.rounds, sizes, 1.0, self.lr, 1, 0, 1, **given)
        none = torch.zeros(0, dtype=torch.float64)
        weights = Weights(torch.tensor(self.start, dtype=torch.float64), none, none.long())
        self.store = ClientStore(1 << 30, torch.device("cpu"))
        self.states: list[State] = []
        self.records: list[dict[str, Any]] = []
        loop = play(plan, first_state(made, weights))
        step = next(loop)
        try:
            while True:
                if isinstance(step, Progress):
                    self.store.adopt(self.store.settled())
                    self.states.append(step.state)
                    if step.record:
                        self.records.append(step.record)
                    step = loop.send(())
                else:
                    step = loop.send([self._answer(made, task) for task in step])
        except StopIteration:
            pass

    @property
    def path(self) -> list[list[float]]:
        """The averaged parameters after each round."""
        return [state.weights.params.tolist() for state in self.states[1:]]

    def kept(self, client: int, name: str) -> list[float]:
        found = self.store.get(client)
        assert found is not None
        return found[name].tolist()  # type: ignore[no-any-return]

    def _answer(self, method: FedAvg, task: Task) -> Answer:
        if task.kind is Kind.EVALUATE:
            shapes = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in task.expects.tensors.items()}
            return Answer(task, Payload(shapes, {"samples": 1}))
        client = self.clients[task.client]
        sent = Weights.of(task.payload.tensors)
        if task.kind is Kind.PROTOTYPES:
            return Answer(task, Payload(self._means(client, sent.params), {"samples": client.samples}))
        kept: Any = self.store.get(task.client)
        if kept is None:
            kept = method.keep_first(task.client, sent, self._fresh)
        start = Weights.of(kept) if method.own_models else sent
        net, feed = Net(start), Steps(client, client.steps)
        local = Local(
            start=start,
            weights=net.weights,
            velocity=kept["velocity"].clone() if method.keeps_momentum else torch.zeros_like(start.params),
            sent=task.payload.tensors,
            settings={name: torch.tensor(value, dtype=torch.float64) for name, value in task.settings.items()},
            kept=kept,
            steps=torch.tensor(client.steps),
            log_shares=torch.log(torch.tensor([1.0, 0.5] if client.label == 0 else [0.5, 1.0], dtype=torch.float64)),
        )
        layout = SimpleNamespace(span=lambda prefix: slice(1, 2))  # the classifier is the second parameter
        setting = SimpleNamespace(method=method, layout=layout, momentum=self.momentum, weight_decay=0.0)
        losses = train_lanes(net, feed, SimpleNamespace(setting=setting, task=task), local)  # type: ignore[arg-type]
        tensors = {
            **{n: t.detach() for n, t in net.weights.tensors().items()},
            "losses": losses,
            **method.answer(local),
        }
        if method.prototype_pass is not None:
            tensors |= self._means(client, net.weights.params.detach())
        payload = Payload(tensors, {"samples": client.samples, "steps": client.steps})
        check(payload, task.expects)
        self.store.commit(task.client, task.round, method.keep(local))
        return Answer(task, payload)

    def _means(self, client: Client, z: Tensor) -> dict[str, Tensor]:
        means = torch.zeros(2, len(z), dtype=torch.float64)
        means[client.label] = z
        counts = torch.zeros(2, dtype=torch.int64)
        counts[client.label] = client.samples
        return {"class_means": means, "class_counts": counts}

    def _fresh(self, number: int) -> Weights:
        none = torch.zeros(0, dtype=torch.float64)
        return Weights(torch.full((len(self.start),), float(number + 1), dtype=torch.float64), none, none.long())
