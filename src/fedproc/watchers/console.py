"""Progress of runs on a console: live bars on a terminal; elsewhere, where all that is printed stays, a line every ten
seconds at most, and one at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from fedproc.simulation.watching import Watched
from fedproc.watchers.progress import Pace, continued, line, over, shown, state

EVERY = 10.0  # seconds between lines


class Display:
    """Round, accuracy and loss of every run, and the time left of all. Why a run failed is said unless `reasons` is
    false: whoever shows the runs says it then.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic, *, reasons: bool = True) -> None:
        self._console, self._clock, self._reasons = console, clock, reasons
        self._pace = Pace(clock)
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._together: TaskID | None = None
        self._runs: Sequence[Watched] = ()
        self._ended: set[str] = set()
        self._printed = 0.0  # when the last line was
        self._news = False  # whether there was a round since

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        self._runs, self._printed, self._news = runs, self._clock(), False
        self._ended = {run.label for run in runs if run.ended}
        self._pace.begin(runs)
        for text in (about, *notes):
            self._print(text)
        for run in runs:
            self._print_notes(run)
            if run.round and run.result is None:
                self._print(f"{run.label}: continues after round {run.round}")
        if self._console.is_terminal:
            self._start()

    def _start(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
        )
        self._tasks, self._together = {}, None  # those of an earlier beginning are gone
        self._progress = Progress(*columns, console=self._console)
        for run in self._runs:
            self._tasks[run.label] = self._progress.add_task(
                run.label, total=run.rounds, completed=len(run.records), state=""
            )
        if len(self._runs) > 1:
            total, done = sum(run.rounds for run in self._runs), sum(len(run.records) for run in self._runs)
            self._together = self._progress.add_task("together", total=total, completed=done, state="")
        self._progress.start()

    def update(self, run: Watched) -> None:
        self._print_notes(run)
        self._pace.update(run)
        if self._progress is not None:
            self._move(self._progress, run)
            return
        self._news = True
        if run.ended and run.label not in self._ended:
            self._ended.add(run.label)
            self._print(f"{run.label}  round {len(run.records)}/{run.rounds}  {state(run, self._reasons)}")
            self._news = len(self._runs) > 1  # of a run by itself, that is all
        if self._clock() - self._printed >= EVERY:
            self._line()

    noted = update

    def end(self) -> None:
        if self._progress is not None:
            self._progress.stop()
        elif self._news:
            self._line()

    def _line(self) -> None:
        self._print(line(self._runs, self._pace, self._reasons))
        self._printed, self._news = self._clock(), False

    def _move(self, progress: Progress, run: Watched) -> None:
        left = None if all(over(each) for each in self._runs) else self._pace.left()
        tail = "" if left is None else f"left {shown(left)}"
        own = tail if self._together is None else ""
        progress.update(self._tasks[run.label], completed=len(run.records), state=f"{state(run, self._reasons)}  {own}")
        if self._together is not None:
            progress.update(self._together, completed=sum(len(each.records) for each in self._runs), state=tail)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def _print_notes(self, run: Watched) -> None:
        for note in run.notes:
            self._print(f"{run.label}: {note}{continued(run)}")
        run.notes.clear()
