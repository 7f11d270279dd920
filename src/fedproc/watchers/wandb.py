"""Runs for Weights & Biases: config, every number of every round, and the headline numbers.

They are written offline into wandb/ of the run folder, when a run ends or is stopped; `wandb sync FOLDER` uploads them,
if that is wanted. WANDB_MODE=online sends them at once.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedproc.files import kind_of
from fedproc.runs.made import foreign
from fedproc.simulation.drive import Run
from fedproc.simulation.watching import Record
from fedproc.watchers.tracker import ID, Tracker, config_of, numbers, scalars

HIDDEN = ".wandb"  # which W&B would write to instead, where it is there


class Wandb(Tracker):
    """Writes into wandb/ of the run folders; one run is open at a time."""

    name = "wandb"
    every = float("inf")
    at_once = True

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read when it is first imported
        try:
            import wandb
        except ImportError as error:
            raise self.missing(error.name or "wandb") from error
        self._wandb: Any = wandb
        self._open: tuple[Path, Any] | None = None

    def expect(self, path: Path) -> None:
        if os.path.lexists(path / HIDDEN):
            raise foreign(path / HIDDEN, kind_of(path / HIDDEN) or "a file")
        super().expect(path)

    def log(self, path: Path, label: str, records: Sequence[Record]) -> None:
        run = self._run(path, label)
        for record in records:
            run.log(scalars(record), step=record["round"])

    def finished(self, run: Run, path: Path) -> None:
        self._run(path, run.label).summary.update(numbers(run.result))

    def close(self) -> None:
        if self._open is not None:
            self._open[1].finish()
            self._open = None

    def _run(self, path: Path, label: str) -> Any:
        if self._open is not None and self._open[0] == path:
            return self._open[1]
        self.close()
        if (known := self.identity(path)) is None:
            known = uuid.uuid4().hex[:12]
            self.put(path, ID, known)
        made = self._wandb.init(
            project="fedproc",
            group=self.home.resolve().name,
            name=label,
            id=known,
            resume="allow",
            dir=str(path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=config_of(path),
            settings=self._wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        self._open = (path, made)
        return made
