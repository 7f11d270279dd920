"""A run as its folder has it, finished or not: for those who look at runs and do not run them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc.errors import InputError, with_flags
from fedproc.methods import METHODS
from fedproc.runs.lines import last_checksum, read_lines
from fedproc.runs.result import complaint
from fedproc.runs.schema import (
    ConfusionLine,
    EnvironmentFile,
    MetricsLine,
    PartitionFile,
    ResultFile,
    Schema,
    SitesLine,
    checked,
    checked_config,
    expect_checksum,
    read_json,
)

Record = dict[str, Any]
LATER = {  # fields that came after the first format
    "ccvr": "none",
    "ccvr_samples": 2000,
    "fit": "crop",
    "normalize": "known",
    "skip_unreadable": False,
    "smallest_class": 1,
    "start_from": None,
    "keep": "last",
    "patience": None,
    "predictions": "none",
    "optimizer": "sgd",
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "class_weights": "none",
    "attack": None,
    "attackers": None,
    "attack_strength": None,
    "privacy": None,
}
LINES: dict[str, type[Schema]] = {
    "metrics.jsonl": MetricsLine,
    "confusion.jsonl": ConfusionLine,
    "sites.jsonl": SitesLine,
}
OURS = {"method", "fingerprint", "data_seed"}  # a config.json without these is somebody else's


def read_environment(folder: Path) -> Record:
    """What a run's environment.json holds; nothing where there is none."""
    path = folder / "environment.json"
    found = read_json(path) or {}
    if found:
        checked(path, found, EnvironmentFile)
    return found


@dataclass(frozen=True)
class SavedRun:
    """A run as its folder has it; result is empty while it is under way."""

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
    def path(self) -> Path:
        return self.folder

    @property
    def status(self) -> str:
        return str(self.result.get("status", f"under way, {len(self.metrics)} of {self.config['rounds']} rounds"))

    @cached_property
    def environment(self) -> Record:
        return read_environment(self.folder)

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
        lines = read_lines(path, ConfusionLine)
        return _matrix(path, lines[-1].get("confusion")) if lines else None

    @cached_property
    def _held(self) -> Record | None:
        path = self.folder / "partition.json"
        found = read_json(path)
        if found is not None:
            checked(path, found, PartitionFile)
        return found

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
    def plugin(self) -> str | None:
        """The SHA-256 of the file that its method comes from, where it is none of ours."""
        found = self.config.get("plugin_sha256", self.config.get("plugin"))
        return found if isinstance(found, str) else None

    @property
    def options(self) -> Record:
        """Those of its method and, with the merge's name before them, of its merge."""
        merge = self.config.get("merge")
        of_merge = self.config.get(merge) if merge else None
        named = {f"{merge}.{name}": value for name, value in of_merge.items()} if isinstance(of_merge, dict) else {}
        return {**(self.config.get(self.method) or {}), **named}

    @property
    def variant(self) -> str:
        """What sets it apart from other runs of its setting, seeds aside."""
        return json.dumps([self.method, self.options, self.plugin], sort_keys=True)


def read_run(folder: Path, way_out: str = "") -> SavedRun | None:
    """The run in a folder, or None where there is none: a config.json of something else is left alone. Complaints end
    with what can be done.
    """
    try:
        return _read(folder)
    except InputError as error:
        text = with_flags(error)
        raise InputError(f"{text}; {way_out}" if way_out else text) from error


def _read(folder: Path) -> SavedRun | None:
    try:
        config = read_json(folder / "config.json") or {}
    except InputError:
        if (folder / "metrics.jsonl").exists():
            raise
        return None
    if not set(config) >= OURS:
        return None
    config = checked_config(folder / "config.json", config)
    metrics = read_lines(folder / "metrics.jsonl", MetricsLine)
    return SavedRun(folder, completed(config), metrics, read_result(folder, metrics) or {})


def completed(config: Record) -> Record:
    """A config with options that its version did not have yet, at what they stand for: their defaults."""
    config = {**LATER, **config}
    method = METHODS.get(config["method"])
    if method is None:
        return config
    defaults = method.options_type().model_dump(mode="json")
    return {**config, method.name: {**defaults, **(config.get(method.name) or {})}}


def _matrix(path: Path, found: Any) -> npt.NDArray[np.int64]:
    try:
        made = np.array(found, dtype=np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{path}: expected rows of whole numbers: {error}") from error
    if made.ndim != 2:
        raise InputError(f"{path}: expected rows of whole numbers")
    return made


def read_result(folder: Path, metrics: Sequence[Record]) -> Record | None:
    """What a run that is over came to, if it is the end of these metrics."""
    path = folder / "result.json"
    result = read_json(path)
    if result is None:
        return None
    checked(path, result, ResultFile)
    if (wrong := complaint(path, result, metrics)) is not None:
        raise InputError(f"{path}: {wrong}")
    for name, schema in LINES.items():
        confirmed = result.get(confirmation(name))  # of earlier formats: none
        if confirmed and confirmed != last_checksum(folder / name, schema):
            raise InputError(f"{path}: made from other lines than those in {name} beside it")
    expect_checksum(path, result, any(confirmation(name) in result for name in LINES))
    checksums = ("checksum", *map(confirmation, LINES))
    return {name: value for name, value in result.items() if name not in checksums}


def confirmation(name: str) -> str:
    """The field of result.json that confirms the last line of a file."""
    return f"{name.removesuffix('.jsonl')}_checksum"
