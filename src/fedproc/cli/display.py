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
from fedproc.lanes import Executor
from fedproc.report.tables import Table
from fedproc.simulation.session import Session


class Display:
    """Round, accuracy, loss and time left of every run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, int] = {}
        self._began = 0.0
        self._already = 0
        self._sessions: Sequence[Session] = ()

    def begin(self, sessions: Sequence[Session], executor: Executor) -> None:
        self._sessions = sessions
        self._shown = {session.label: len(session.records) for session in sessions}
        self._began = time.monotonic()
        self._already = sum(len(session.records) for session in sessions)
        first = sessions[0]
        sizes = sorted(first.client_sizes)
        self._console.print(
            f"{first.images.name}: {len(first.images.train):,} training and {len(first.images.test):,} test images, "
            f"{first.images.classes} classes; {len(sizes)} clients of {sizes[0]:,} to {sizes[-1]:,} samples; "
            f"{executor.name} on {_device(first)}, {_lanes(executor)}",
            highlight=False,
        )
        for note in executor.notes:
            self._console.print(note, highlight=False)
        executor.notes.clear()
        for session in sessions:
            self._print_notes(session)
            if session.records and session.result is None:
                self._console.print(f"{session.label}: continues after round {session.state.round}", highlight=False)
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            for session in sessions:
                total, done = session.plan.rounds, len(session.records)
                self._tasks[session.label] = self._progress.add_task(
                    session.label, total=total, completed=done, state=""
                )
            self._progress.start()

    def _print_notes(self, session: Session) -> None:
        for note in session.notes:
            self._console.print(f"{session.label}: {note}; going on from round {session.state.round}", highlight=False)
        session.notes.clear()

    def update(self, session: Session) -> None:
        self._print_notes(session)
        state = _state(session)
        if self._progress is not None:
            self._progress.update(self._tasks[session.label], completed=len(session.records), state=state)
        elif session.ended or len(session.records) > self._shown.get(session.label, 0):
            self._shown[session.label] = len(session.records)
            done = f"round {len(session.records)}/{session.plan.rounds}"
            self._console.print(f"{session.label}  {done}  {state}  left {self._left()}", highlight=False)

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _left(self) -> str:
        """Time left of all runs together, at the pace since the beginning."""
        done = sum(len(session.records) for session in self._sessions)
        total = sum(session.plan.rounds for session in self._sessions if not session.ended)
        pace = (time.monotonic() - self._began) / max(1, done - self._already)
        seconds = round(pace * max(0, total - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _state(session: Session) -> str:
    if session.ended is not None:
        return str(session.ended) if isinstance(session.ended, Failed) else f"diverged in round {session.ended.round}"
    if not session.records:
        return ""
    key = f"{session.plan.held_out}_accuracy"
    accuracy = next((record[key] for record in reversed(session.records) if key in record), None)
    shown = "" if accuracy is None else f"accuracy {100 * accuracy:5.2f} %  "
    return f"{shown}{_loss(session.records[-1])}"


def _loss(record: dict[str, Any]) -> str:
    loss = record.get("train_loss")
    return "" if loss is None else f"loss {loss:.4f}"


def _device(session: Session) -> str:
    """The device, and why it is the CPU where it was not requested."""
    if session.experiment.device == "auto" and session.device.type == "cpu":
        return "cpu (torch sees no GPU)"
    return str(session.device)


def _lanes(executor: Executor) -> str:
    return "one client at a time" if executor.lanes == 1 else f"up to {executor.lanes} clients side by side"


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
