"""`fedproc data check`: all that is wrong with a person's images, at once."""

from __future__ import annotations

import argparse
import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedproc.cells import safe_cell
from fedproc.cli.parser import add_experiment_flags, given
from fedproc.data import SOURCES
from fedproc.data.check import Check, Counts, check
from fedproc.data.names import readable
from fedproc.data.problems import Problem
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.files import write_file
from fedproc.runs.lock import expect_folder

ASKED = ("data", "test_fraction", "skip_unreadable", "seed", "data_seed")
MOST_OF_A_KIND = 10
MOST_COLUMNS, MOST_ROWS = 10, 50


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="also write the list as a CSV file")
    without = tuple(name for name in Experiment.model_fields if name not in ASKED)
    add_experiment_flags(parser, without, methods={})
    parser.set_defaults(command=check_command)


def check_command(parsed: argparse.Namespace, console: Console) -> int:
    experiment = Experiment(**given(parsed))
    if parsed.data is None or experiment.data in SOURCES:
        raise InputError(f"--data {parsed.data or ''}: expected the path of your own image folder or CSV file")
    if parsed.out is not None:
        expect_folder(parsed.out.parent)
    e = experiment
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("images", total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        found = check(Path(e.data), e.test_fraction, e.data_seed, e.skip_unreadable, advance)
    console.print(_table(found.counts))
    _show(found, console)
    if parsed.out is not None:
        write_file(parsed.out, lambda path: _write(path, found.problems))
        console.print(f"all of it is in {parsed.out}", highlight=False)
    return 1 if found.stops else 0


def _table(counts: Counts) -> Table:
    """Training + test images of each class and site; whichever are more go down."""
    classes, sites = (sorted({key[axis] for key in counts}) for axis in (0, 1))
    turned = len(sites) > len(classes)
    down, across = (sites, classes) if turned else (classes, sites)
    title = "images for training + testing"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("site" if turned else "class", no_wrap=True)
    named = across if 1 < len(across) <= MOST_COLUMNS else []
    for name in (*named, "all"):
        table.add_column(name or "(no site)", justify="right", overflow="fold")

    def cell(row: str | None, column: str | None) -> str:
        wanted = (column, row) if turned else (row, column)
        held: Counter[str] = Counter()
        for (label, site, part), count in counts.items():
            if wanted[0] in (None, label) and wanted[1] in (None, site):
                held[part] += count
        return f"{held['train']:,} + {held['test']:,}" if held else "·"

    for row in down[:MOST_ROWS]:
        table.add_row(row or "(no site)", *(cell(row, column) for column in (*named, None)))
    if len(down) > MOST_ROWS:
        table.add_row(f"… {len(down) - MOST_ROWS} more", *[""] * (len(named) + 1))
    table.add_row("all", *(cell(None, column) for column in (*named, None)))
    return table


def _show(found: Check, console: Console) -> None:
    shown: Counter[tuple[bool, str]] = Counter()
    for problem in found.problems:
        shown[problem.stops, problem.kind] += 1
        if shown[problem.stops, problem.kind] <= MOST_OF_A_KIND:
            word = "stops training" if problem.stops else "look at"
            console.print(f"{word}: {problem.kind}: {readable(problem.text)}", highlight=False, soft_wrap=True)
    for (_, kind), count in shown.items():
        if count > MOST_OF_A_KIND:
            console.print(f"… {count - MOST_OF_A_KIND} more of: {kind}; --out FILE.csv lists all", highlight=False)
    stops = sum(problem.stops for problem in found.problems)
    rest = len(found.problems) - stops
    told = f"{stops} that stop training, {rest} to look at" if found.problems else "nothing is wrong"
    console.print(f"{sum(found.counts.values()):,} images can be read; {told}", highlight=False)


def _write(path: Path, problems: Sequence[Problem]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "stops_training", "kind", "path", "text"])
        for number, problem in enumerate(problems, start=1):
            for where in problem.paths or [""]:
                cells = ("yes" if problem.stops else "no", problem.kind, readable(where), readable(problem.text))
                writer.writerow([number, *map(safe_cell, cells)])
