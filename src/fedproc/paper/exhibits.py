"""Every table and figure: which runs it is made of, at the paper's scale or a smaller one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fedproc.paper import published
from fedproc.paper.published import Published

Given = dict[str, Any]
Measure = Literal["accuracy", "seconds", "rounds", "epochs", "tsne"]
REFERENCE = "fedproc"  # the row that the paper's claims are about

ALL = ("solo", "fedavg", "scaffold", "fedprox", "moon", "fedproc")
FEDERATED = ALL[1:]
ALONE_ROUNDS = 5  # of each method that is timed alone; the first is warm-up


@dataclass(frozen=True)
class Column:
    """A data set at a learning rate: its label, its fields of Experiment, and its name in `published`."""

    label: str
    given: Given
    name: str


@dataclass(frozen=True)
class Scale:
    """How large: the data sets, rounds and epochs, populations (clients, share that takes part, two values of T), and
    the grids of beta and E. Where the paper has one data set, `single` are its columns.
    """

    name: str
    summary: str
    columns: tuple[Column, ...]
    single: tuple[Column, ...]
    base: Given
    populations: tuple[tuple[int, float, tuple[int, int]], ...]
    betas: tuple[float, ...] = (5.0, 0.5, 0.1)
    epochs: tuple[int, ...] = (1, 5, 10, 20)
    seeds: tuple[int, ...] = (0, 1, 2)
    solo_epochs: int = 300
    embedded: int = 100  # test images per class in the t-SNE figure


def _both(data: str, words: str) -> tuple[Column, Column]:
    """A data set at the paper's learning rate and at the one its quoted rivals had."""
    return (
        Column(f"{words}, lr 0.1", {"data": data, "lr": 0.1}, data),
        Column(f"{words}, lr 0.01", {"data": data, "lr": 0.01}, data),
    )


_CIFAR100 = _both("cifar100", "CIFAR-100")
_EMBEDDED = (Column("Fashion-MNIST, embedded", {"data": "fashion-mini"}, "fashion-mini"),)

SCALES = {
    "full": Scale(
        name="full",
        summary="the paper's setting, at both learning rates where it has two",
        columns=(
            Column("CIFAR-10", {"data": "cifar10"}, "cifar10"),
            *_CIFAR100,
            *_both("tiny-imagenet", "Tiny-ImageNet"),
        ),
        single=_CIFAR100,
        base={"clients": 10, "beta": 0.5, "rounds": 100, "epochs": 10, "batch_size": 64},
        populations=((50, 1.0, (100, 200)), (100, 0.2, (250, 500))),
    ),
    "small": Scale(
        name="small",
        summary="the same experiments on the embedded data, minutes on two cores (lr 0.03: ten rounds are few)",
        columns=_EMBEDDED,
        single=_EMBEDDED,
        base={"clients": 10, "beta": 0.5, "rounds": 10, "epochs": 1, "batch_size": 32, "lr": 0.03},
        populations=((20, 1.0, (10, 20)), (40, 0.2, (20, 40))),
        epochs=(1, 2, 3),
        seeds=(0,),
        solo_epochs=10,
        embedded=50,
    ),
    "tiny": Scale(
        name="tiny",
        summary="seconds, to see that everything works",
        columns=_EMBEDDED,
        single=_EMBEDDED,
        base={"clients": 3, "beta": 0.5, "rounds": 2, "epochs": 1, "batch_size": 128},
        populations=((4, 1.0, (1, 2)), (6, 0.5, (1, 2))),
        betas=(5.0, 0.5),
        epochs=(1, 2),
        seeds=(0,),
        solo_epochs=1,
        embedded=10,
    ),
}


@dataclass(frozen=True)
class Cell:
    """One number, or one curve: the fields of its run, and what was published."""

    row: str
    column: str
    given: Given
    published: Published | None = None

    @property
    def panel(self) -> str:
        """The column without its number of local epochs: what is drawn together."""
        return self.column.partition("|")[0]


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper; `measure` is what is taken from each run."""

    name: str
    number: str
    title: str
    measure: Measure
    cells: Callable[[Scale], list[Cell]]

    @property
    def figure(self) -> bool:
        return self.measure in ("rounds", "epochs", "tsne")


def _given(scale: Scale, column: Column, method: str, **more: Any) -> Given:
    """The fields of a run; those shared with the t-SNE figure save their clients' models."""
    extra: Given = {"solo": {"epochs": scale.solo_epochs}} if method == "solo" else {}
    if method in ("fedavg", "fedproc") and column is scale.columns[0]:
        extra["keep_clients"] = True
    return {**scale.base, **column.given, "method": method, **extra, **more}


def _accuracy(scale: Scale) -> list[Cell]:
    return [
        Cell(method, column.label, _given(scale, column, method), published.ACCURACY[method].get(column.name))
        for method in ALL
        for column in scale.columns
    ]


def _beta(scale: Scale) -> list[Cell]:
    cells = []
    for method in ALL:
        for column in scale.single:
            for beta in scale.betas:
                theirs = published.BETA[method].get(f"{beta:g}") if column.name == "cifar100" else None
                given = _given(scale, column, method, beta=beta)
                cells.append(Cell(method, f"beta = {beta:g}{_lr(scale, column)}", given, theirs))
    return cells


def _alpha(scale: Scale) -> list[Cell]:
    rows: dict[str, tuple[str, Given]] = {
        "two-stage": ("two-stage", {}),
        "alpha = 0.5": ("fedproc", {"fedproc": {"alpha": 0.5}}),
        "fedproc": ("fedproc", {}),
    }
    return [
        Cell(row, column.label, _given(scale, column, method, **more), published.ALPHA[row].get(column.name))
        for row, (method, more) in rows.items()
        for column in scale.columns
    ]


def _time(scale: Scale) -> list[Cell]:
    """Time does not depend on the learning rate: of two columns of a data set the first."""
    columns = {column.name: column for column in reversed(scale.columns)}
    return [
        Cell(
            method,
            column.label,
            _given(scale, column, method, rounds=ALONE_ROUNDS, eval_every=ALONE_ROUNDS),
            published.TIME[method].get(column.name),
        )
        for method in FEDERATED
        for column in reversed(columns.values())
    ]


def _clients(scale: Scale) -> list[Cell]:
    cells = []
    for method in FEDERATED:
        for column in scale.single:
            for clients, share, lengths in scale.populations:
                for rounds in lengths:
                    given = _given(scale, column, method, clients=clients, sample=share, rounds=rounds)
                    theirs = published.CLIENTS[method].get(f"{clients}/{rounds}") if scale.name == "full" else None
                    cells.append(Cell(method, f"m = {clients}, T = {rounds}{_lr(scale, column)}", given, theirs))
    return cells


def _client_curves(scale: Scale) -> list[Cell]:
    longest = {f"m = {clients}, T = {max(lengths)}" for clients, _, lengths in scale.populations}
    return [cell for cell in _clients(scale) if cell.column.partition(", lr")[0] in longest]


def _epochs(scale: Scale) -> list[Cell]:
    return [
        Cell(method, f"{column.label}|{epochs}", _given(scale, column, method, epochs=epochs))
        for method in FEDERATED
        for column in scale.columns
        for epochs in scale.epochs
    ]


def _tsne(scale: Scale) -> list[Cell]:
    first = scale.columns[0]
    return [Cell(method, first.label, _given(scale, first, method)) for method in ("solo", "fedavg", "fedproc")]


def _lr(scale: Scale, column: Column) -> str:
    return f", lr {column.given['lr']:g}" if len(scale.single) > 1 else ""


EXHIBITS = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit("accuracy", "Table 2", "Top-1 accuracy of the methods", "accuracy", _accuracy),
        Exhibit("beta", "Table 3", "Accuracy by the skew of the data", "accuracy", _beta),
        Exhibit("alpha", "Table 4", "Accuracy by weighting of the two losses", "accuracy", _alpha),
        Exhibit("time", "Table 5", "Seconds per round, each method alone", "seconds", _time),
        Exhibit("clients", "Table 6", "Accuracy with more clients", "accuracy", _clients),
        Exhibit("tsne", "Figure 2", "Embeddings of clients' and global models", "tsne", _tsne),
        Exhibit("rounds", "Figure 4", "Accuracy by round", "rounds", _accuracy),
        Exhibit("epochs", "Figure 5", "Accuracy by local epochs", "epochs", _epochs),
        Exhibit("client-curves", "Figure 6", "Accuracy by round with more clients", "rounds", _client_curves),
    )
}
