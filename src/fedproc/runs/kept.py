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
DRAWN = ("test_accuracy", "val_accuracy", "prototype_accuracy", "val_prototype_accuracy")
WHOLE = ("seed", "data_seed", "clients", "rounds", "epochs")
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
        path = self.folder / "confusion.jsonl"
        lines = read_lines(path)
        return _matrix(path, lines[-1].get("confusion")) if lines else None

    @cached_property
    def _held(self) -> Record | None:
        return read_object(self.folder / "partition.json")

    @cached_property
    def partition(self) -> tuple[list[str], npt.NDArray[np.int64]] | None:
        """Class names, and how much of each class each client holds."""
        path, found = self.folder / "partition.json", self._held
        if found is None:
            return None
        names, counts = found.get("class_names"), _matrix(path, found.get("counts"))
        if not isinstance(names, list) or len(names) != counts.shape[1]:
            raise InputError(f"{path}: class_names {names}: expected the names of {counts.shape[1]} classes")
        return list(map(str, names)), counts

    @property
    def client_names(self) -> list[str]:
        """Of clients that are the data's own sites."""
        found = (self._held or {}).get("client_names")
        return list(map(str, found)) if isinstance(found, list) else []

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
    for name in WHOLE:
        if not isinstance(config[name], int):
            raise InputError(f"{folder / 'config.json'}: {name} {config[name]}: expected a whole number")
    metrics = read_lines(folder / "metrics.jsonl")
    for number, line in enumerate(metrics, 1):
        for name, value in line.items():
            kind = dict if name == "seconds" else (int, float) if name in DRAWN else object
            if not isinstance(value, kind):
                what = "numbers by name" if kind is dict else "a number"
                raise InputError(f"{folder / 'metrics.jsonl'}: line {number}: {name} {value}: expected {what}")
    return Kept(folder, config, metrics, read_result(folder, metrics) or {})


def _matrix(path: Path, found: Any) -> npt.NDArray[np.int64]:
    try:
        made = np.array(found, dtype=np.int64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: expected rows of whole numbers: {error}") from error
    if made.ndim != 2:
        raise InputError(f"{path}: expected rows of whole numbers")
    return made


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
        texts = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    lines = []
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(line, dict) or not isinstance(line.get("round"), int):
            raise InputError(f"{path}: line {number}: expected an object with its round, got {json.dumps(line)[:60]}")
        lines.append(line)
    return lines
