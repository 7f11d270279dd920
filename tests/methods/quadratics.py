"""Federated learning small enough for paper and pencil: every client minimises 0.5 h (w - b)^2.

The real round loop, the real local training, the real checks and the real client states run on a network that is its
own parameters: z = w, and each client's quadratic stands in for cross-entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from fedproc.lanes.batches import Step
from fedproc.lanes.local import outcome, train_lanes
from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.checked_server import CheckedServer
from fedproc.methods.merges import MERGES
from fedproc.methods.method import Batch, ClientProblem, Local, Method, ServerProblem, TensorInfo, Term
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.optimizers import Optimizer
from fedproc.optimizers import first_state as first_optimizer
from fedproc.protocol.payload import Payload
from fedproc.protocol.plan import Plan, State, first_state
from fedproc.protocol.rounds import played
from fedproc.protocol.task import Kind, Phase, Reply, Task
from fedproc.protocol.weights import Shared, Weights
from fedproc.runs.client_states import ClientStates


@dataclass(frozen=True)
class Client:
    """h and b of its quadratic, samples, steps per round, and the one class it holds."""

    h: Sequence[float]
    b: Sequence[float]
    samples: int = 1
    steps: int = 1
    label: int = 0


class Quadratic:
    """Puts the client's quadratic in the place of cross-entropy; logits carry h and b."""

    def loss(self, batch: Batch, local: Local) -> Any:
        terms = dict(super().loss(batch, local))  # type: ignore[misc]
        if not getattr(self, "_quadratic", True):  # the method's own loss stays
            return terms
        size = batch.z.shape[-1]
        h, b = batch.logits[..., :size], batch.logits[..., size:]
        weight = terms["cross_entropy"].weight
        return {**terms, "cross_entropy": Term(0.5 * (h * (batch.z - b) ** 2).sum(dim=-1), weight)}


class Net:
    """z is the parameters themselves."""

    descend = None

    def __init__(self, weights: Weights) -> None:
        self.weights = Weights(
            weights.params.clone().requires_grad_(), weights.buffers.clone(), weights.counters.clone()
        )

    def forward(self, images: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.weights.params.expand(len(images), -1), images

    def frozen(self, weights: Weights, images: Tensor) -> tuple[Tensor, Tensor]:
        return weights.params.expand(len(images), -1), images

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


CLASSIFIER = slice(1, 2)  # the second parameter
NONE = torch.zeros(0, dtype=torch.float64)


@dataclass
class World:
    """A method on quadratics: `states` after the start and after each round, and the clients' states."""

    method: type[Method]
    clients: Sequence[Client]
    start: Sequence[float]
    rounds: int = 2
    lr: float = 0.5
    momentum: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    at_client: dict[str, Any] = field(default_factory=dict)
    at_server: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    until: int | None = None  # stop after so many rounds
    begin: State | None = None

    def __post_init__(self) -> None:
        kind: Any = type(f"Quadratic{self.method.__name__}", (Quadratic, self.method), {})
        client = ClientProblem(2, len(self.start), torch.float64, self.momentum, **self.at_client)
        method: Method = kind(
            self.method.options_type(**self.options), client, ServerProblem(self.rounds, 1, **self.at_server)
        )
        names = [TensorInfo(f"p{i}", (1,), "Toy") for i in range(len(self.start))]
        own = [i for i, info in enumerate(names) if method.personal(info)]
        rest = torch.tensor([i for i in range(len(names)) if i not in own], dtype=torch.int64)
        shared = Shared(rest, NONE.long(), NONE.long()) if own else None
        self._half = CheckedClient(method.client_half(), shared)
        given = {"merge": MERGES[method.merge], "server_step": SERVER_STEPS[method.server_step], **self.plan}
        given = {"sample": 1.0, "eval_every": 1, "classifier": CLASSIFIER, "shared": shared, **given}
        self.made = Plan(
            method=CheckedServer(method),
            rounds=method.rounds,
            clients=[str(i) for i in range(len(self.clients))],
            lr=self.lr,
            model_seed=0,
            batch_size=1,
            **given,
        )
        weights = Weights(torch.tensor(self.start, dtype=torch.float64), NONE, NONE.long())
        self.store = ClientStates(1 << 30, torch.device("cpu"))
        self.states: list[State] = []
        self.records: list[dict[str, Any]] = []
        self.tasks: list[Task] = []
        for progress in played(self.made, self.begin or first_state(self.made, weights), self._answer):
            self.store.adopt(self.store.settled())
            self.states.append(progress.state)
            if progress.record:
                self.records.append(progress.record)
            if self.until is not None and progress.state.round == self.until:
                break

    @property
    def path(self) -> list[list[float]]:
        """The averaged parameters after each round."""
        return [state.weights.params.tolist() for state in self.states[1:]]

    def client_state(self, client: int, name: str) -> list[float]:
        found = self.store.get(client)
        assert found is not None
        return found[name].tolist()  # type: ignore[no-any-return]

    def _answer(self, task: Task) -> Reply:
        self.tasks.append(task)
        if task.kind is Kind.EVALUATE:
            shapes = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in task.expects.tensors.items()}
            return Reply(Payload(shapes, {"samples": 1}))
        client = self.clients[task.client]
        if task.kind is Kind.DESCRIBE:
            return Reply(Payload({}, {"samples": client.samples}))
        sent = Weights.of(task.payload.tensors)
        if task.kind is Kind.CLASS_MEANS:
            return Reply(Payload(self._means(client, sent.params), {"samples": client.samples}))
        return self._train(task, client, sent)

    def _train(self, task: Task, client: Client, sent: Weights) -> Reply:
        found = self.store.latest(task.client)
        state = self._half.first_state(task.client, sent, self._fresh) if found is None else found
        setting = SimpleNamespace(
            method=self._half,
            layout=SimpleNamespace(span=lambda prefix: CLASSIFIER),
            optimizer=Optimizer(momentum=self.momentum),
        )

        def steps(phase: Phase) -> int:
            return client.steps * phase.epochs

        job: Any = SimpleNamespace(setting=setting, task=task, steps=steps, samples=range(client.samples))
        answer: tuple[Local, Tensor] | None = None
        for phase in task.phases:
            start = self._half.start(sent, state, phase.name)
            net = Net(start)
            carried = self._half.start_optimizer(state, phase.name, start.params)
            shares = torch.tensor([1.0, 0.5] if client.label == 0 else [0.5, 1.0], dtype=torch.float64)
            local = Local(
                start=start,
                weights=net.weights,
                optimizer=first_optimizer("sgd", start.params) if carried is None else carried,
                sent=task.payload.tensors,
                settings={name: torch.tensor(value, dtype=torch.float64) for name, value in task.settings.items()},
                state=state,
                steps=torch.tensor(steps(phase)),
                class_counts=torch.eye(2, dtype=torch.float64)[client.label] * client.samples,
                log_shares=shares.log(),
                phase=phase,
            )
            losses = train_lanes(net, Steps(client, steps(phase)), job, phase, local)  # type: ignore[arg-type]
            weights = Weights.of({n: t.detach() for n, t in net.weights.tensors().items()})
            local = replace(local, weights=weights)
            state = self._half.next_state(local)
            if phase.returns:
                answer = (local, losses)
        assert answer is not None
        means = self._means(client, answer[0].weights.params) if task.means else {}
        reply, after = outcome(job, *answer, state, means, {})
        self.store.commit(task.client, task.round, after)
        return reply

    def _means(self, client: Client, z: Tensor) -> dict[str, Tensor]:
        means = torch.zeros(2, len(z), dtype=torch.float64)
        means[client.label] = z
        counts = torch.zeros(2, dtype=torch.int64)
        counts[client.label] = client.samples
        return {"class_means": means, "class_counts": counts}

    def _fresh(self, number: int) -> Weights:
        return Weights(torch.full((len(self.start),), float(number + 1), dtype=torch.float64), NONE, NONE.long())
