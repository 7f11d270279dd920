"""A run as its folder tells it, finished or not: for those who look at runs and do not run them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc.errors import InputError
from fedproc.runs.result import complaint

Record = dict[str, Any]
OURS = {"method", "fingerprint", "data_seed"}  # a config.json without these is somebody else's
NEEDED = OURS | {"seed", "data", "clients", "partition", "beta", "sample", "rounds", "epochs", "lr", "network"}


@dataclass(frozen=True)
class Kept:
    """A run as its folder tells it; result is empty while it is under way."""

    folder: Path
    config: Record
    metrics: list[Record]
    result: Record

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def status(self) -> str:
        return str(self.result.get("status", f"under way, {len(self.metrics)} of {self.config['rounds']} rounds"))

    @cached_property
    def environment(self) -> Record:
        return read_object(self.folder / "environment.json") or {}

    @property
    def alone(self) -> bool:
        """Whether nothing else was trained beside it by the same command, so that its clock is its own."""
        if "runs_at_once" in self.environment:
            return bool(self.environment["runs_at_once"] == 1)
        return not {"compare", "paper"} & {*self.environment.get("command", [])}  # runs of earlier versions

    @cached_property
    def confusion(self) -> npt.NDArray[np.int64] | None:
        """Of the last evaluated round."""
        lines = read_lines(self.folder / "confusion.jsonl")
        return np.array(lines[-1]["confusion"], dtype=np.int64) if lines else None

    @cached_property
    def partition(self) -> tuple[list[str], npt.NDArray[np.int64]] | None:
        """Class names, and how much of each class each client holds."""
        found = read_object(self.folder / "partition.json")
        return None if found is None else (list(found["class_names"]), np.array(found["counts"], dtype=np.int64))

    @property
    def held_out(self) -> str:
        return "validation" if self.config.get("val_fraction") else "test"

    @property
    def variant(self) -> str:
        """What sets it apart from other runs of its setting, seeds aside."""
        return json.dumps([self.method, self.config.get(self.method, {}), self.config.get("plugin")], sort_keys=True)


def read_run(folder: Path, way_out: str = "") -> Kept | None:
    """The run in a folder, or None where there is none: a config.json of something else is left alone. Complaints end
    with what can be done.
    """
    try:
        return _read(folder)
    except InputError as error:
        raise InputError(f"{error}; {way_out}" if way_out else str(error)) from error


def _read(folder: Path) -> Kept | None:
    try:
        config = read_object(folder / "config.json") or {}
    except InputError:
        if (folder / "metrics.jsonl").exists():
            raise
        return None
    if not set(config) >= OURS:
        return None
    if NEEDED - set(config):
        raise InputError(f"{folder / 'config.json'}: {', '.join(sorted(NEEDED - set(config)))} missing")
    metrics = read_lines(folder / "metrics.jsonl")
    return Kept(folder, config, metrics, read_result(folder, metrics) or {})


def read_result(folder: Path, metrics: Sequence[Record]) -> Record | None:
    """What a run that is over came to, if it is the end of these metrics."""
    result = read_object(folder / "result.json")
    if result is not None and (wrong := complaint(result, metrics)) is not None:
        raise InputError(f"{folder / 'result.json'}: {wrong}")
    return result


def read_object(path: Path) -> Record | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: expected a JSON object")
    return found


def read_lines(path: Path) -> list[Record]:
    """All whole lines; a run under way may be writing the last."""
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: a line is not JSON: {error}") from error
    for line in lines:
        if not isinstance(line, dict) or "round" not in line:
            raise InputError(f"{path}: expected one object with its round a line, got {json.dumps(line)[:60]}")
    return lines
