"""The evaluation at the end of a round, and what of it goes on record."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedproc.errors import Diverged
from fedproc.protocol import evaluation
from fedproc.protocol.exchange import Consume, Exchange
from fedproc.protocol.payload import Payload
from fedproc.protocol.plan import Plan
from fedproc.protocol.task import SERVER, Kind, Task
from fedproc.protocol.weights import Weights

Record = dict[str, Any]
Measuring = Generator[Exchange, None, tuple[Record, float]]
OF_CLIENTS = ("client_correct", "client_samples")
OF_OWN_MODELS = ("accuracy", "accuracy_deviation", "balanced_accuracy", "loss", "client_accuracy_mean")
BESIDE = ("accuracy", "loss", "prototype_accuracy")  # what is on record of models beside the global one


@dataclass(frozen=True)
class Candidate:
    """A model that the server evaluates, with the prototypes it is tested with; the global one has no name."""

    name: str
    weights: Weights
    prototypes: Tensor
    known: Tensor

    @property
    def payload(self) -> Payload:
        return Payload({**self.weights.tensors(), "prototypes": self.prototypes, "known": self.known})


def measure(plan: Plan, candidates: Sequence[Candidate], t: int, on_test: bool = False) -> Measuring:
    """The server's models on its held-out images."""
    expects = evaluation.expected(plan.method.classes, len(plan.clients))
    tasks = [Task(Kind.EVALUATE, SERVER, t, one.payload, expects, run=plan.run, on_test=on_test) for one in candidates]
    answers, seconds = yield from _ask(tasks, t)
    measured = _side_by_side(plan, candidates, [evaluation.measures(answer) for _, answer in answers])
    if plan.privacy is not None:  # clients' accuracies are weighted by what classes they have, which is theirs to know
        measured = {name: value for name, value in measured.items() if "client_accuracy" not in name}
    elif plan.real_sites:
        correct, total = (answers[0][1].tensors[name] for name in OF_CLIENTS)
        measured["sites"] = {
            name: evaluation.of_site(correct[client], total[client])
            for client, name in enumerate(plan.clients)
            if int(total[client].sum())
        }
    return measured, seconds


def measure_at_clients(plan: Plan, candidates: Sequence[Candidate], tasks: Sequence[Sequence[Task]]) -> Measuring:
    """Models on the held-out images that each client has, pooled: of each candidate, the tasks of all clients. Who does
    not answer is left out; that nobody does is the end.
    """
    of_each, seconds = yield from _at_clients(plan, tasks)
    found = [evaluation.measures(evaluation.pooled([payload for _, payload in each])) for each in of_each]
    measured = _side_by_side(plan, candidates, found)
    measured["sites"] = {task.name: evaluation.of_site(*_by_class(payload)) for task, payload in of_each[0]}
    return measured, seconds


def _at_clients(
    plan: Plan, tasks: Sequence[Sequence[Task]]
) -> Generator[Exchange, None, tuple[list[list[tuple[Task, Payload]]], float]]:
    expects = evaluation.expected_of_client(plan.method.classes)
    asked = [replace(task, expects=expects) for each in tasks for task in each]
    answers: list[tuple[Task, Payload]] = []
    keep: Consume = lambda task, payload: answers.append((task, payload))  # noqa: E731
    exchange = Exchange(asked, keep, lambda task, payload: evaluation.expect_consistent(payload))
    yield exchange
    of_each: list[list[tuple[Task, Payload]]] = [[] for _ in tasks]
    for place, answer in zip(exchange.accepted, answers, strict=True):
        of_each[place // len(tasks[0])].append(answer)
    if not all(of_each):
        raise Diverged(tasks[0][0].round + 1, f"the model cannot be evaluated: {next(iter(exchange.refused.values()))}")
    return of_each, exchange.seconds.get("evaluation", 0.0)


def _by_class(payload: Payload) -> tuple[Tensor, Tensor]:
    """Correct answers and images of each class."""
    confusion = payload.tensors["confusion"]
    return confusion.diagonal(), confusion.sum(dim=1)


def _side_by_side(plan: Plan, candidates: Sequence[Candidate], found: Sequence[Record]) -> Record:
    """All numbers of the global model, and the most important ones of those beside it."""
    prefix = _prefix(plan.held_out)
    measured = _named(prefix, found[0])
    others = {one.name: {name: each[name] for name in BESIDE} for one, each in zip(candidates, found, strict=True)}
    del others[""]
    measured |= {f"{prefix}averaged_{name}": value for name, value in others.pop("averaged", {}).items()}
    return {**measured, f"{prefix}final_models": others} if others else measured


def measure_clients(plan: Plan, tasks: Sequence[Task], counts: Mapping[int, Tensor]) -> Measuring:
    """Each client's own model on the server's held-out images: means over the clients, and the mean over clients of
    their accuracy on images with the classes of their own data (`own_accuracy`).
    """
    measured, answers, seconds = yield from _of_clients(plan, tasks, counts)
    measured = _named(_prefix(plan.held_out), measured)
    if plan.real_sites:
        measured["sites"] = _at_home(answers)
    return measured, seconds


def _at_home(answers: Sequence[tuple[Task, Payload]]) -> Record:
    """Of each client's model, what it has on the images of that client."""
    return {
        task.name: evaluation.of_site(*(answer.tensors[name][task.client] for name in OF_CLIENTS))
        for task, answer in answers
    }


def measure_own_models(plan: Plan, tasks: Sequence[Task], counts: Mapping[int, Tensor]) -> Measuring:
    """The models that clients have beside the global one: `own_accuracy` as above, where clients have held-out images
    the mean over clients of the accuracy on those; what they are on all held-out images; and real sites' own models on
    the site's images.
    """
    sites: Record = {}
    if plan.evaluates_at == "server":
        measured, answers, seconds = yield from _of_clients(plan, tasks, counts)
        sites = _at_home(answers) if plan.real_sites else {}
    else:
        (answers,), seconds = yield from _at_clients(plan, [tasks])
        measured = evaluation.measures(evaluation.pooled([payload for _, payload in answers]))
        measured["own_accuracy"] = measured["client_accuracy_mean"]
        sites = {task.name: evaluation.of_site(*_by_class(payload)) for task, payload in answers}
    prefix = _prefix(plan.held_out)
    found: Record = {f"{prefix}own_models": {name: measured[name] for name in OF_OWN_MODELS if name in measured}}
    if "own_accuracy" in measured:
        found[f"{prefix}own_accuracy"] = measured["own_accuracy"]
    return {**found, "sites": sites} if sites else found, seconds


def _of_clients(
    plan: Plan, tasks: Sequence[Task], counts: Mapping[int, Tensor]
) -> Generator[Exchange, None, tuple[Record, list[tuple[Task, Payload]], float]]:
    """What models at the clients are on the server's held-out images, the answers, and the seconds."""
    expects = evaluation.expected(plan.method.classes, len(plan.clients))
    t = tasks[0].round
    answers, seconds = yield from _ask([replace(task, expects=expects) for task in tasks], t)
    found = [evaluation.measures(answer) for _, answer in answers]
    for task, each in zip(tasks, found, strict=True):
        if not bool(task.payload.tensors["known"].any()):
            del each["prototype_accuracy"]  # a client without prototypes is no part of that mean
    measured = evaluation.mean_measures(found)
    theirs = [each["client_accuracies"][task.client] for each, task in zip(found, tasks, strict=True)]
    held = [accuracy for accuracy in theirs if accuracy is not None]
    if held:  # each client's own model on its own share
        measured |= {"client_accuracy_mean": statistics.fmean(held), "client_accuracy_worst": min(held)}
    accuracies = [each["accuracy"] for each in found]
    if len(accuracies) > 1:
        measured["accuracy_deviation"] = statistics.stdev(accuracies)
    own = [
        evaluation.own_accuracy(each["class_accuracy"], counts[task.client])
        for each, task in zip(found, tasks, strict=True)
        if task.client in counts
    ]
    if own:
        measured["own_accuracy"] = statistics.fmean(own)
    return measured, answers, seconds


def _ask(
    tasks: Sequence[Task], t: int
) -> Generator[Exchange, None, tuple[list[tuple[Task, Payload]], float]]:  # fmt: skip
    found: list[tuple[Task, Payload]] = []
    exchange = Exchange(tasks, lambda task, payload: found.append((task, payload)))
    yield exchange
    if exchange.refused:
        raise Diverged(t + 1, f"the model cannot be evaluated: {next(iter(exchange.refused.values()))}")
    return found, exchange.seconds.get("evaluation", 0.0)


def _prefix(held_out: str) -> str:
    return "" if held_out == "test" else "val_"


def _named(prefix: str, measured: Record) -> Record:
    """test_accuracy and test_loss, the rest by their own names; with a validation split all begin with val_."""
    test = {"accuracy", "loss", "accuracy_deviation"} if not prefix else set()
    shown = {name: value for name, value in measured.items() if name != "client_accuracies"}
    return {(f"test_{name}" if name in test else prefix + name): value for name, value in shown.items()}
