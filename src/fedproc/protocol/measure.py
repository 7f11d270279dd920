"""The evaluation at the end of a round, and what of it goes on record."""

from __future__ import annotations

import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedproc.errors import Diverged
from fedproc.protocol import evaluation
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import SERVER, Kind, Task
from fedproc.protocol.weights import Weights

Record = dict[str, Any]
Measuring = Generator[Exchange, None, tuple[Record, float]]
BESIDE = ("accuracy", "loss", "prototype_accuracy")  # what is on record of models beside the global one


@dataclass(frozen=True)
class Candidate:
    """A model that the server evaluates, with the prototypes it is tested with; the global one has no name."""

    name: str
    weights: Weights
    prototypes: Tensor
    known: Tensor


def measure(
    held_out: str, candidates: Sequence[Candidate], classes: int, sizes: Sequence[int], t: int, run: str
) -> Measuring:
    """The server's models on the held-out images."""
    expects = evaluation.expected(classes, len(sizes))
    tasks = []
    for one in candidates:
        payload = Payload({**one.weights.tensors(), "prototypes": one.prototypes, "known": one.known})
        tasks.append(Task(Kind.EVALUATE, SERVER, t, payload, expects, run=run))
    found, seconds = yield from _ask(tasks, t)
    prefix = _prefix(held_out)
    measured = _named(prefix, found[0])
    others = {one.name: {name: each[name] for name in BESIDE} for one, each in zip(candidates, found, strict=True)}
    del others[""]
    measured |= {f"{prefix}averaged_{name}": value for name, value in others.pop("averaged", {}).items()}
    return {**measured, f"{prefix}final_models": others} if others else measured, seconds


def measure_clients(
    held_out: str, tasks: Sequence[Task], classes: int, sizes: Sequence[int], counts: Mapping[int, Tensor]
) -> Measuring:
    """Each client's own model on the held-out images: means over the clients, and the mean over clients of their
    accuracy on images with the classes of their own data (`own_accuracy`).
    """
    expects = evaluation.expected(classes, len(sizes))
    t = tasks[0].round
    found, seconds = yield from _ask([replace(task, expects=expects) for task in tasks], t)
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
    own = [_own(each["class_accuracy"], counts[task.client]) for each, task in zip(found, tasks, strict=True)
           if task.client in counts]  # fmt: skip
    if own:
        measured["own_accuracy"] = statistics.fmean(own)
    return _named(_prefix(held_out), measured), seconds


def _own(by_class: Sequence[float | None], counts: Tensor) -> float:
    """The accuracy to be expected on images whose classes are distributed as the client's own."""
    shares = zip(by_class, (counts / counts.sum().clamp(min=1)).tolist(), strict=True)
    return float(sum(share * accuracy for accuracy, share in shares if accuracy is not None))


def _ask(tasks: Sequence[Task], t: int) -> Generator[Exchange, None, tuple[list[Record], float]]:
    found: list[Record] = []
    exchange = Exchange(tasks, lambda task, payload: found.append(evaluation.measures(payload)))
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
