"""What trackers have in common: they write the numbers of every round of runs that have folders, each round once, also
of a run that is continued or was finished without them.

A tracker says in `log` how rounds are written and in `finished` what is said of a run that is over. How far it is
stands in a folder of its name inside the run folder. What goes wrong with it never ends a run; a folder of its
name that holds links or pipes is refused, since they would be written through.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedproc.errors import InputError
from fedproc.files import kind_of, read_text, write_file
from fedproc.runs.made import expect_plain, foreign
from fedproc.runs.schema import read_json
from fedproc.simulation.drive import Run
from fedproc.simulation.watching import Record, Watched
from fedproc.watchers.progress import over

WRITTEN, FINISHED = "rounds-written", "round-finished"  # files that hold how far we are
ID = "run-id"  # a file that holds what the tracker calls the run
LONGEST = 100  # bytes of such a file
KINDS = (("accuracy", ("accuracy", "macro_f1", "auc")), ("loss", ("loss", "cross_entropy")))


class Tracker:
    """`home` is the folder of the command: a run's own, or that of a comparison."""

    name: ClassVar[str]
    every: ClassVar[float] = 0.0  # seconds between writes while a run is under way
    at_once: ClassVar[bool] = False  # whether the last rounds of a run are written together with its end

    def __init__(self, home: Path) -> None:
        self.home = home
        self._written: dict[Path, int] = {}
        self._at: dict[Path, float] = {}
        self._seen: dict[Path, Watched] = {}
        self._complained = False
        self._expected: set[Path] = set()  # folders whose content was looked at
        self.expect(home)

    def expect(self, path: Path) -> None:
        """Refuse what must not be written through in this tracker's folder below a path, before it is first used."""
        if path not in self._expected:
            expect_plain(path, self.name)
            self._expected.add(path)

    def log(self, path: Path, label: str, records: Sequence[Record]) -> None:
        """Write these rounds of the run in a folder."""
        raise TypeError(f"{type(self).__name__} must say how rounds are written")

    def finished(self, run: Run, path: Path) -> None:
        """Write what there is to say of a run that is over, once."""

    def close(self) -> None:
        """There is nothing more for now."""

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        for run in runs:
            self.update(run)

    def update(self, run: Watched) -> None:
        if run.path is not None:
            self._seen[run.path] = run
            self._catch_up(run.path, run.label, run.records, over(run) and not self.at_once)

    def end(self) -> None:
        for path, run in self._seen.items():
            if not (self.at_once and over(run)):
                self._catch_up(path, run.label, run.records, True)
        self._safely(self.close)

    def finish(self, run: Run) -> None:
        """Catch up with a run that was made, now or before."""
        if run.path is None:
            return
        self._catch_up(run.path, run.label, run.metrics, True)
        done = len(run.metrics)
        if self.number(run.path, FINISHED) != done:
            self._safely(self.finished, run, run.path)
            self.put(run.path, FINISHED, done)
        self._safely(self.close)

    def _catch_up(self, path: Path, label: str, records: Sequence[Record], now: bool) -> None:
        """Write the rounds that are missing; fewer than written: a worker does rounds again, with the same numbers."""
        if path not in self._written:
            self._written[path] = min(self.number(path, WRITTEN), len(records))
        done, clock = self._written[path], time.monotonic()
        due = now or clock - self._at.setdefault(path, clock) >= self.every
        if len(records) <= done or not due:
            return
        self._at[path] = clock
        if self._safely(self.log, path, label, list(records[done:])):
            self._written[path] = len(records)
            self.put(path, WRITTEN, len(records))

    def written(self, path: Path) -> int:
        """How many rounds of a run are written."""
        return self._written.get(path, 0)

    def _safely(self, work: Callable[..., object], *given: object) -> bool:
        try:
            work(*given)
        except Exception as error:
            if not self._complained:
                self._complained = True
                words = f"{type(error).__name__}: {error}"
                warnings.warn(f"--log {self.name}: {words}; the runs go on without it", stacklevel=2)
            return False
        return True

    def folder(self, path: Path) -> Path:
        """A run's folder of this tracker."""
        self.expect(path)
        found = path / self.name
        if (what := kind_of(found)) != "a folder" and os.path.lexists(found):
            raise foreign(found, what or "a file")
        found.mkdir(parents=True, exist_ok=True)
        return found

    def text(self, path: Path, name: str) -> str:
        """What a small file of a run's folder says, nothing where there is none."""
        self.expect(path)
        file = path / self.name / name
        if (what := kind_of(file)) is not None:
            raise foreign(file, what)
        try:
            return read_text(file).strip() if file.stat().st_size <= LONGEST else ""
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def identity(self, path: Path) -> str | None:
        """What the tracker calls the run in a folder, where that is on record: a word that is safe in a path."""
        found = self.text(path, ID)
        return found if re.fullmatch(r"[A-Za-z0-9_-]+", found) else None

    def number(self, path: Path, name: str) -> int:
        """The round in a file of a run's folder, 0 where there is none."""
        found = self.text(path, name)
        return int(found) if re.fullmatch("[0-9]{1,15}", found) else 0

    def put(self, path: Path, name: str, value: object) -> None:
        write_file(self.folder(path) / name, lambda temporary: temporary.write_text(f"{value}\n", encoding="utf-8"))

    def missing(self, package: str) -> InputError:
        words = f"the package {package.partition('.')[0]} is not installed; pip install 'fedproc[{self.name}]'"
        return InputError(f"--log {self.name}: {words}")


def config_of(path: Path) -> dict[str, Any]:
    """What a run's config.json says, options as method.option."""
    found: dict[str, Any] = {}
    for name, value in (read_json(path / "config.json") or {}).items():
        found |= (
            {f"{name}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
        )
    return found


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round by tag: accuracy/, loss/, seconds/ and run/."""
    found = {f"seconds/{part}": spent for part, spent in record["seconds"].items()}
    for name, value in numbers(record).items():
        kind = next((kind for kind, ends in KINDS if any(end in name for end in ends)), "run")
        found[f"{kind}/{name}"] = value
    return found


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The plain numbers of a record or result, the round aside."""
    return {
        name: value
        for name, value in record.items()
        if name != "round" and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
