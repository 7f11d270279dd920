"""Progress of runs: live bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from fedproc.errors import Failed
from fedproc.report.tables import Table
from fedproc.simulation.watching import Watched


class Display:
    """Round, accuracy, loss and time left of every run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, int] = {}
        self._began = 0.0
        self._already = 0
        self._runs: Sequence[Watched] = ()

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        self._runs = runs
        self._shown = {run.label: len(run.records) for run in runs}
        self._began = time.monotonic()
        self._already = sum(len(run.records) for run in runs)
        for line in (about, *notes):
            self._console.print(line, highlight=False)
        for run in runs:
            self._print_notes(run)
            if run.round and run.result is None:
                self._console.print(f"{run.label}: continues after round {run.round}", highlight=False)
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            for run in runs:
                self._tasks[run.label] = self._progress.add_task(
                    run.label, total=run.rounds, completed=len(run.records), state=""
                )
            self._progress.start()

    def _print_notes(self, run: Watched) -> None:
        for note in run.notes:
            self._console.print(f"{run.label}: {note}; going on from round {run.round}", highlight=False)
        run.notes.clear()

    def update(self, run: Watched) -> None:
        self._print_notes(run)
        state = _state(run)
        if self._progress is not None:
            self._progress.update(self._tasks[run.label], completed=len(run.records), state=state)
        elif run.ended or len(run.records) > self._shown.get(run.label, 0):
            self._shown[run.label] = len(run.records)
            done = f"round {len(run.records)}/{run.rounds}"
            self._console.print(f"{run.label}  {done}  {state}  left {self._left()}", highlight=False)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _left(self) -> str:
        """Time left of all runs together, at the pace since the beginning."""
        done = sum(len(run.records) for run in self._runs)
        total = sum(run.rounds for run in self._runs if not run.ended)
        pace = (time.monotonic() - self._began) / max(1, done - self._already)
        seconds = round(pace * max(0, total - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _state(run: Watched) -> str:
    if run.ended is not None:
        return str(run.ended) if isinstance(run.ended, Failed) else f"diverged in round {run.ended.round}"
    if not run.records:
        return ""
    key = f"{run.evaluated_on}_accuracy"
    accuracy = next((record[key] for record in reversed(run.records) if key in record), None)
    shown = "" if accuracy is None else f"accuracy {100 * accuracy:5.2f} %  "
    refused = run.records[-1].get("refused", {})
    why = "".join(f"  refused: client {client}: {reason}" for client, reason in list(refused.items())[:1])
    more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"{shown}{_loss(run.records[-1])}{why}{more}"


def _loss(record: dict[str, Any]) -> str:
    loss = record.get("train_loss")
    return "" if loss is None else f"loss {loss:.4f}"


def print_table(console: Console, table: Table) -> None:
    """A table with its note below; rows without a name of their own belong to the one above. One that is too wide is
    turned where that makes it narrower, and else its cells are broken.
    """
    words = {"", "accuracy", "verdict"}
    grouped = any(not row[0].text for row in table.rows)
    if not grouped and not _fits(table, console) and len(table.rows) < len(table.heads) - 1:
        table = table.turned()
    fits = grouped or _fits(table, console)
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)} if grouped else {}
    made = RichTable(title=table.title, title_justify="left", **look)
    for head in table.heads:
        made.add_column(
            head, justify="left" if head in words else "right", no_wrap=fits and head not in words, overflow="fold"
        )
    for place, row in enumerate(table.rows):
        following = table.rows[place + 1] if place + 1 < len(table.rows) else None
        last = grouped and (following is None or bool(following[0].text))
        made.add_row(*(Text(cell.text) for cell in row), end_section=last)
    console.print(made)
    if table.note:
        console.print(Text(table.note))


def _fits(table: Table, console: Console) -> bool:
    columns = zip(table.heads, *([cell.text for cell in row] for row in table.rows), strict=True)
    return sum(max(map(len, column)) + 3 for column in columns) < console.width
