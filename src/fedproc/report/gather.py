"""What lies in run folders and the paper's folders, put in order for a page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc.comparison import Comparison, Row
from fedproc.errors import InputError
from fedproc.experiment import FREE
from fedproc.methods import METHODS
from fedproc.paper.published import Published
from fedproc.paper.reproduce import published_by_setting, setting_of

Record = dict[str, Any]
SEED_FOLDER = re.compile(r"seed-\d+")
APART = FREE | {"method", "preset", "seed", "data_seed", "model_seed", "fingerprint", "plugin"}
APART |= {"keep_clients", "eval_every"}  # what is looked at, not what is done


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
        return _json(self.folder / "environment.json") or {}

    @cached_property
    def confusion(self) -> npt.NDArray[np.int64] | None:
        """Of the last evaluated round."""
        lines = _lines(self.folder / "confusion.jsonl")
        return np.array(lines[-1]["confusion"], dtype=np.int64) if lines else None

    @cached_property
    def partition(self) -> tuple[list[str], npt.NDArray[np.int64]] | None:
        """Class names, and how much of each class each client holds."""
        found = _json(self.folder / "partition.json")
        return None if found is None else (list(found["class_names"]), np.array(found["counts"], dtype=np.int64))

    @property
    def mergeless(self) -> bool:
        """Whether its rounds follow epochs of its own, as SOLO's do."""
        return self.method in METHODS and METHODS[self.method].own_models


@dataclass(frozen=True)
class Group:
    """Runs of one setting: all but the method and the seeds agree."""

    title: str
    runs: list[Kept]
    comparison: Comparison
    published: dict[str, Published]

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Shown:
    """A table or figure of the paper, as `fedproc paper` wrote it."""

    folder: Path
    content: Record


@dataclass(frozen=True)
class Gathered:
    groups: list[Group]
    exhibits: list[Shown]
    runs: list[Kept]


def gather(folders: Sequence[Path], reference: str | None = None) -> Gathered:
    """All runs and exhibits at or below these folders, each once."""
    homes: dict[Path, Kept] = {}
    exhibits: dict[Path, Shown] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder; expected run folders, or folders that hold some")
        for path in sorted(folder.rglob("config.json")):
            found = _run(path)
            if found is not None:
                homes.setdefault(path.parent.resolve(), found)
        for path in sorted(folder.rglob("exhibit.json")):
            content = _json(path)
            if content is not None and "cells" in content:
                exhibits.setdefault(path.parent.resolve(), Shown(path.parent, content))
    if not homes and not exhibits:
        raise InputError(f"{', '.join(map(str, folders))}: no run folder and no table or figure of the paper in there")
    return Gathered(_groups(list(homes.values()), reference), list(exhibits.values()), list(homes.values()))


def _run(path: Path) -> Kept | None:
    config = _json(path)
    if config is None or not {"method", "fingerprint", "data_seed"} <= set(config):
        return None
    home = path.parent
    return Kept(home, config, _lines(home / "metrics.jsonl"), _json(home / "result.json") or {})


def _groups(runs: Sequence[Kept], reference: str | None) -> list[Group]:
    found: dict[str, list[Kept]] = {}
    for run in runs:
        if not run.mergeless:
            found.setdefault(_key(run, rounds=True), []).append(run)
    for run in runs:
        if run.mergeless:  # beside those it is compared with, however many rounds they have
            beside = [key for key, group in found.items() if _key(group[0], rounds=False) == _key(run, rounds=False)]
            found.setdefault(beside[0] if beside else _key(run, rounds=True), []).append(run)
    titles = _titles([group[0] for group in found.values()])
    return [_group(title, group, reference) for title, group in zip(titles, found.values(), strict=True)]


def _fields(run: Kept) -> Record:
    return {name: value for name, value in run.config.items() if name not in APART and not isinstance(value, dict)}


def _key(run: Kept, rounds: bool) -> str:
    return json.dumps({n: v for n, v in _fields(run).items() if rounds or n != "rounds"}, sort_keys=True)


def _titles(firsts: Sequence[Kept]) -> list[str]:
    """What each setting is, and in what else it differs from the others."""
    fields = [_fields(run) for run in firsts]
    told = {"data", "clients", "partition", "beta", "sample", "rounds", "epochs", "lr", "network", "width"}
    differing = sorted({n for f in fields for n in f if n not in told and any(g.get(n) != f[n] for g in fields)})
    titles = []
    for f in fields:
        skew = f"{f['partition']}, beta {f['beta']:g}" if "dirichlet" in f["partition"] else str(f["partition"])
        sampled = f", {100 * f['sample']:g} % a round" if f["sample"] < 1 else ""
        words = [
            str(f["data"]),
            f"{f['clients']} clients ({skew}{sampled})",
            f"{_many(f['rounds'], 'round')} of {_many(f['epochs'], 'epoch')}",
            f"lr {f['lr']:g}",
            *(f"{name.replace('_', ' ')} {f.get(name)}" for name in differing),
        ]
        titles.append(", ".join(words))
    return titles


def _many(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _group(title: str, runs: list[Kept], reference: str | None) -> Group:
    labels = _labels(runs)
    rows: dict[str, list[Kept]] = {}
    for run, label in zip(runs, labels, strict=True):
        rows.setdefault(label, []).append(run)
    known = list(METHODS)
    order = sorted(rows, key=lambda label: (known.index(m) if (m := rows[label][0].method) in known else 99, label))
    made = []
    for label in order:
        over = [run for run in sorted(rows[label], key=lambda run: run.seed) if run.result]
        fine = [run for run in over if run.status == "finished"]
        if over:
            made.append(Row(label, fine, [run.seed for run in over if run.status != "finished"]))
    against = reference or ("fedavg" if "fedavg" in order else next((row.label for row in made), ""))
    if reference is not None and reference not in order:
        raise InputError(f"--reference {reference}: expected one of {', '.join(order)}")
    table = published_by_setting()
    published = {
        label: table[key]
        for label in order
        if (key := setting_of(rows[label][0].config, int(rows[label][0].config["rounds"]))) in table
    }
    return Group(title, runs, Comparison(made, None, against), published)


def _labels(runs: Sequence[Kept]) -> list[str]:
    """The method's name; where a method came in several variants, that of the folder its seeds lie in."""
    variants: dict[str, set[str]] = {}
    for run in runs:
        variants.setdefault(run.method, set()).add(json.dumps(run.config.get(run.method, {}), sort_keys=True))
    return [run.method if len(variants[run.method]) == 1 else _folder_name(run.folder) for run in runs]


def _folder_name(folder: Path) -> str:
    whole = folder.resolve()
    return whole.parent.name if SEED_FOLDER.fullmatch(whole.name) else whole.name


def _json(path: Path) -> Record | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    return found if isinstance(found, dict) else None


def _lines(path: Path) -> list[Record]:
    """All whole lines; a run under way may be writing the last."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise InputError(f"{path}: a line is not JSON: {error}") from error
