"""Make a table or figure: find or make its runs, collect the numbers, write them next to the published ones."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedproc.errors import InputError, RunError
from fedproc.experiment import Experiment
from fedproc.files import write_file, write_json
from fedproc.paper.exhibits import REFERENCE, Cell, Exhibit, Given, Scale
from fedproc.paper.identity import identity, rounds_of
from fedproc.report.panels import draw_epochs, draw_rounds
from fedproc.report.summary import differences_by_column
from fedproc.report.tables import Grid, Number, Table
from fedproc.reproduction import tsne
from fedproc.runs.lock import expect_below
from fedproc.runs.saved import read_run
from fedproc.simulation.drive import Run, run
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.preparation import Library
from fedproc.simulation.watching import Watcher
from fedproc.simulation.workers.choice import Asked
from fedproc.simulation.workers.run import run_many
from fedproc.statistics import Paired, compare

OF_THE_PATH = ("data", "method")


class TooLittleDone(InputError):
    """Too few runs of an exhibit are done to show it without running more."""


@dataclass(frozen=True)
class Request:
    """What was asked for: the exhibit, how large, with which seeds, where, and what is the same for all runs (the
    machine and where the data is). `imported` are finished runs from elsewhere, by their identity.
    """

    exhibit: Exhibit
    scale: Scale
    seeds: tuple[int, ...]
    out: Path
    shared: Given
    imported: Mapping[str, Sequence[Path]]

    @property
    def folder(self) -> Path:
        """Where the table or figure is written."""
        return self.out / self.scale.name / self.exhibit.name

    def experiments(self, cell: Cell) -> dict[Path, Experiment]:
        """The runs of a cell, by their folders; times and embeddings are of one seed."""
        alone = self.exhibit.measure == "seconds"
        home = self.out / self.scale.name / ("alone" if alone else "runs") / slug(cell.given, self.scale)
        seeds = self.seeds[:1] if self.exhibit.measure in ("seconds", "tsne") else self.seeds
        return {home / f"seed-{seed}": Experiment(**{**self.shared, **cell.given, "seed": seed}) for seed in seeds}

    def wanted(self) -> dict[Path, Experiment]:
        """All runs of the exhibit, each once."""
        return {path: each for cell in self.exhibit.cells(self.scale) for path, each in self.experiments(cell).items()}

    def finished(self, path: Path, experiment: Experiment) -> Run | None:
        """The run in its folder, or an imported one: of the same experiment, with the files that are needed, and
        for times one that ran alone.
        """
        files = ["result.json", *(tsne.needed(experiment.method) if self.exhibit.measure == "tsne" else [])]
        wanted = identity(experiment.config(), rounds_of(experiment))
        for folder in (path, *self.imported.get(wanted, ())):
            if not all((folder / name).is_file() for name in files):
                continue
            saved = read_run(folder, f"remove {folder} to have this run made again")
            if saved is None or identity(saved.config, int(saved.config["rounds"])) != wanted:
                continue
            if saved.alone or self.exhibit.measure != "seconds":
                return Run(experiment, experiment.method, saved.result, saved.metrics, folder)
        return None


@dataclass(frozen=True)
class Reproduction:
    """The finished exhibit: a grid of numbers, ours next to the published, the files that hold it, and where there are
    several seeds each row's paired differences to FedProc's. `missing` are the runs that it lacks.
    """

    grid: Grid
    files: list[Path]
    differences: Table | None = None
    missing: Sequence[str] = ()


def slug(given: Given, scale: Scale) -> str:
    """A folder's name that says in what a run differs from the scale's base."""
    words = [str(given[name]) for name in OF_THE_PATH]
    for name in sorted(given):
        value = given[name]
        if name in OF_THE_PATH or scale.base.get(name) == value or name in ("solo", "keep_clients"):
            continue
        inner = value.items() if isinstance(value, dict) else [(name, value)]
        words += [f"{key}{number:g}" for key, number in inner]
    return "-".join(words)


def reproduce(
    request: Request,
    watcher: Watcher | None = None,
    only_done: bool = False,
    interrupt: Interrupt | None = None,
    workers: Asked = 1,
) -> Reproduction:
    """Run what is missing, and write the exhibit; with `only_done` write it from the finished runs. Workers share the
    runs but those that are timed, each of which is alone.
    """
    runs: dict[Path, Run] = {}
    missing: dict[str, tuple[Experiment, Path | None]] = {}
    for path, experiment in request.wanted().items():
        done = request.finished(path, experiment)
        if done is not None:
            runs[path] = done
        else:
            missing[str(path.relative_to(request.out / request.scale.name))] = (experiment, path)
    if only_done:
        if not runs or (missing and request.exhibit.measure == "tsne"):
            raise TooLittleDone(f"{request.exhibit.name}: {len(runs)} of {len(runs) + len(missing)} runs are done")
    elif request.exhibit.measure == "seconds":
        for experiment, home in missing.values():
            assert home is not None
            runs[home] = run(experiment, home, watcher=watcher, interrupt=interrupt)
    elif missing:
        if request.exhibit.measure == "tsne":
            _check_models(missing.values())
        paths = [path for _, path in missing.values() if path is not None]
        for path in paths:
            expect_below(request.out, path)
        made_now = run_many(missing, workers, request.folder, watcher=watcher, interrupt=interrupt)
        runs |= dict(zip(paths, made_now, strict=True))
    made = _embedded(request, runs) if request.exhibit.measure == "tsne" else _written(request, runs)
    return replace(made, missing=[*missing] if only_done else ())


def _check_models(missing: Iterable[tuple[Experiment, Path | None]]) -> None:
    """A run that has ended is not run again for models that it lacks."""
    for experiment, path in missing:
        if path is not None and (path / "result.json").is_file():
            lacking = [name for name in tsne.needed(experiment.method) if not (path / name).is_file()]
            if lacking:
                raise InputError(
                    f"{path / lacking[0]}: is gone, and the run is over; remove {path} to have this run made again"
                )


def _embedded(request: Request, runs: Mapping[Path, Run]) -> Reproduction:
    """The t-SNE figure, and how similar clients' and global models are."""
    found = {run.experiment.method: run for run in runs.values()}
    for method, each in found.items():
        if not _finished(each):
            raise RunError(f"{method} diverged in {each.path}: there is nothing to embed")
    folders = {method: each.path for method, each in found.items() if each.path is not None}
    images = Library().images(found["fedavg"].experiment)
    embedded = tsne.embed(folders, images, request.scale.embedded)
    numbers = {
        (method, name): Number(value, seeds=1)
        for method, row in embedded.alignment.items()
        for name, value in row.items()
    }
    exhibit = request.exhibit
    grid = Grid(
        f"{exhibit.number}, {exhibit.name}: {exhibit.title} (centred kernel alignment)",
        numbers,
        "Models of the first seed",
    )
    files = _files(request.folder, grid)
    drawn = tsne.draw(embedded)
    for kind in ("png", "svg"):
        files.append(request.folder / f"figure.{kind}")
        write_file(files[-1], partial(drawn.save, kind=kind))
    paths = {method: os.path.relpath(folder, request.folder) for method, folder in folders.items()}
    files.append(request.folder / "exhibit.json")
    write_json(files[-1], _content(request, grid, paths))
    return Reproduction(grid, files)


def _content(request: Request, grid: Grid, runs: Mapping[str, Any]) -> Given:
    """What exhibit.json holds; runs by their paths from there."""
    about = {"exhibit": request.exhibit.name, "scale": request.scale.name, "title": grid.title}
    return {**about, "of_one_run": grid.of_one_run, "digits": grid.digits, "cells": grid.json(), "runs": runs}


def _files(folder: Path, grid: Grid) -> list[Path]:
    """The grid in three formats."""
    return _texts(folder, "table", grid.formats())


def _texts(folder: Path, name: str, texts: Mapping[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for kind, text in texts.items():
        files.append(folder / f"{name}.{kind}")
        write_file(files[-1], _writing(text))
    return files


def _written(request: Request, runs: Mapping[Path, Run]) -> Reproduction:
    exhibit = request.exhibit
    cells = exhibit.cells(request.scale)
    of_cell = {id(cell): [runs[path] for path in request.experiments(cell) if path in runs] for cell in cells}
    if exhibit.measure == "epochs":
        of_cell = _same_seeds(cells, of_cell)
    cells = [cell for cell in cells if of_cell[id(cell)] or cell.published]
    numbers = {(cell.row, cell.column): _number(exhibit, cell, of_cell[id(cell)]) for cell in cells}
    unit = "seconds" if exhibit.measure == "seconds" else "per cent"
    grid = Grid(
        f"{exhibit.number}, {exhibit.name}: {exhibit.title} ({unit})",
        numbers,
        "The median round of one run" if unit == "seconds" else "",
        digits=None if unit == "seconds" else 1,
    )
    folder = request.folder
    files = _files(folder, grid)
    found = _differences(cells, of_cell) if unit == "per cent" else {}
    differences = differences_by_column(found, REFERENCE) if found else None
    for kind in ("csv", "md", "tex"):
        (folder / f"differences.{kind}").unlink(missing_ok=True)
    if differences is not None:
        files += _texts(folder, "differences", differences.formats())
    if exhibit.figure:
        panels: dict[str, dict[str, Any]] = {}
        for cell in cells:
            if not of_cell[id(cell)]:
                continue
            rows = panels.setdefault(cell.panel, {})
            if exhibit.measure == "epochs":
                rows.setdefault(cell.row, {})[cell.given["epochs"]] = numbers[cell.row, cell.column]
            else:
                rows[cell.row] = [found.metrics for found in of_cell[id(cell)] if _finished(found)]
        drawn = (draw_epochs if exhibit.measure == "epochs" else draw_rounds)(panels)
        for kind in ("png", "svg"):
            files.append(folder / f"figure.{kind}")
            write_file(files[-1], partial(drawn.save, kind=kind))
    paths = {
        f"{cell.row} | {cell.column}": [os.path.relpath(str(f.path), folder) for f in of_cell[id(cell)]]
        for cell in cells
    }
    files.append(folder / "exhibit.json")
    listed = [
        {"column": column, "row": row, **asdict(one), "verdict": one.verdict}
        for column, by_row in found.items()
        for row, one in by_row.items()
    ]
    write_json(files[-1], {**_content(request, grid, paths), "differences": listed})
    return Reproduction(grid, files, differences)


def _same_seeds(cells: Sequence[Cell], of_cell: Mapping[int, list[Run]]) -> dict[int, list[Run]]:
    """Of a data set whose columns are to be compared with each other, the seeds that all its cells with runs have."""
    shared: dict[str, set[int]] = {}
    for cell in cells:
        if runs := of_cell[id(cell)]:
            seeds = {found.seed for found in runs}
            shared[cell.panel] = shared.get(cell.panel, seeds) & seeds
    for panel, seeds in shared.items():
        if not seeds:
            raise TooLittleDone(f"epochs: {panel} has no seed that is done in all its cells with runs")
    return {id(cell): [found for found in of_cell[id(cell)] if found.seed in shared[cell.panel]] for cell in cells}


def _differences(cells: Sequence[Cell], of_cell: Mapping[int, Sequence[Run]]) -> dict[str, dict[str, Paired]]:
    """By column and row, of the columns in which a row shares two seeds with FedProc's."""
    columns: dict[str, dict[str, dict[int, float]]] = {}
    for cell in cells:
        finals = {found.seed: found.result["final_accuracy"] for found in of_cell[id(cell)] if _finished(found)}
        columns.setdefault(cell.column.replace("|", ", E = "), {})[cell.row] = finals
    return {column: found for column, rows in columns.items() if (found := compare(rows, REFERENCE))}


def _writing(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _finished(found: Run) -> bool:
    return bool(found.result["status"] == "finished")


def _number(exhibit: Exhibit, cell: Cell, runs: Sequence[Run]) -> Number:
    """Mean and sample deviation over seeds of what the exhibit measures; the time is the median round's."""
    done = [found for found in runs if _finished(found)]
    if exhibit.measure == "seconds":
        spent = [sum(r["seconds"][p] for p in ("train", "prototypes", "merge")) for f in done for r in f.metrics[1:]]
        values = [statistics.median(spent)] if spent else []
    else:
        values = [100 * found.result["final_accuracy"] for found in done]
    theirs = cell.published
    return Number(
        mean=statistics.fmean(values) if values else None,
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        seeds=len(values),
        diverged=len(runs) - len(done),
        published=theirs.value if theirs else None,
        published_deviation=theirs.deviation if theirs else None,
    )
