"""Trackers by name, as --log has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedproc.errors import InputError, meant
from fedproc.simulation.drive import Run
from fedproc.watchers.mlflow import MLflow
from fedproc.watchers.tensorboard import TensorBoard
from fedproc.watchers.tracker import Tracker
from fedproc.watchers.wandb import Wandb

TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, MLflow, Wandb)}


def trackers(names: str | Iterable[str], home: Path | None) -> list[Tracker]:
    """Those of these names, each once; they need a folder to write to."""
    asked = list(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in asked:
        if name not in TRACKERS:
            raise InputError(f"--log {name}: expected {', '.join(TRACKERS)}{meant(name, TRACKERS)}")
    if asked and home is None:
        raise InputError(f"--log {asked[0]}: needs --out, the folder to write to")
    return [TRACKERS[name](home) for name in asked if home is not None]


def finish(watching: Sequence[Tracker], runs: Iterable[Run]) -> None:
    """Let trackers catch up with runs that are made."""
    for run in runs:
        for tracker in watching:
            tracker.finish(run)
