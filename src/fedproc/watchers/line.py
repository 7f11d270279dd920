"""Progress of runs in a notebook: one line of plain text, rewritten; no widgets."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from fedproc.simulation.watching import Watched, Watcher
from fedproc.watchers.console import Display
from fedproc.watchers.progress import Pace, continued, line, listed, state

EVERY = 0.5  # seconds between two versions of the line


class Text:
    """What a notebook shows of a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class NotebookLine:
    """`show(text)` shows a text and returns what rewrites it: IPython's display, unless another is given."""

    def __init__(self, show: Callable[[Text], Callable[[Text], object]] | None = None) -> None:
        self._show = show or _display
        self._pace = Pace()
        self._runs: Sequence[Watched] = ()
        self._rewrite: Callable[[Text], object] | None = None
        self._said: list[str] = []
        self._written = 0.0

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        self._runs, self._said = runs, [about, *notes]
        self._pace.begin(runs)
        for run in runs:
            self._take_notes(run)
            if run.round and run.result is None:
                self._said.append(f"{run.label}: continues after round {run.round}")
        self._rewrite = self._show(self._text())

    def update(self, run: Watched) -> None:
        self._take_notes(run)
        self._pace.update(run)
        if self._rewrite is not None and (run.ended is not None or time.monotonic() - self._written >= EVERY):
            self._rewrite(self._text())

    noted = update

    def end(self) -> None:
        if self._rewrite is not None:
            self._rewrite(self._text())

    def _text(self) -> Text:
        self._written = time.monotonic()
        return Text("\n".join([*self._said, *self._ended(), line(self._runs, self._pace)]))

    def _ended(self) -> list[str]:
        """What ended runs early, the same words once; of a run by itself the line says it."""
        labels: dict[str, list[str]] = {}
        for run in self._runs if len(self._runs) > 1 else ():
            if run.ended is not None:
                labels.setdefault(state(run), []).append(run.label)
        return [f"{listed(who)}: {words}" for words, who in labels.items()]

    def _take_notes(self, run: Watched) -> None:
        self._said += [f"{run.label}: {note}{continued(run)}" for note in run.notes]
        run.notes.clear()


def _display(text: Text) -> Callable[[Text], object]:
    import IPython.display

    show: Any = IPython.display.display
    handle = show(text, display_id=True)
    rewrite: Callable[[Text], object] = handle.update
    return rewrite


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this, and not a terminal or a script."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


def usual() -> Watcher:
    """The progress that suits where this runs: a notebook's line, bars on a terminal, a line now and then elsewhere."""
    return NotebookLine() if in_notebook() else Display(Console(stderr=True, markup=False))
