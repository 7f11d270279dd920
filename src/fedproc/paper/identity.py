"""The identity of a run, whoever made it, by which finished runs and published numbers are found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from fedproc.errors import InputError
from fedproc.experiment import FREE, Experiment
from fedproc.methods.method import ClientProblem, ServerProblem
from fedproc.paper.exhibits import EXHIBITS, SCALES, Given
from fedproc.paper.published import Published
from fedproc.runs.saved import read_run


def identity(config: Given, rounds: int) -> str:
    """What identifies a run, whoever made it: its config without machine, paths, preset, fingerprint, and what was
    evaluated and saved.
    """
    apart = FREE | {"preset", "seed", "fingerprint", "rounds", "keep_clients", "eval_every", "format"}
    return json.dumps({**{k: v for k, v in config.items() if k not in apart}, "rounds": rounds}, sort_keys=True)


def setting_of(config: Given, rounds: int) -> str:
    """`identity` but for the seeds."""
    return identity({name: value for name, value in config.items() if name not in ("data_seed", "model_seed")}, rounds)


@lru_cache(maxsize=1)
def published_by_setting() -> dict[str, Published]:
    """The accuracies that the paper prints, by their setting."""
    full = SCALES["full"]
    cells = [cell for e in EXHIBITS.values() if e.measure == "accuracy" for cell in e.cells(full) if cell.published]
    experiments = [Experiment(**{**cell.given, "seed": 0}) for cell in cells]
    keys = [setting_of(each.config(), rounds_of(each)) for each in experiments]
    pairs = zip(reversed(keys), reversed(cells), strict=True)  # of a number in two tables the first counts
    return {key: cell.published for key, cell in pairs if cell.published is not None}


def rounds_of(experiment: Experiment) -> int:
    """The rounds a run takes: SOLO's follow its epochs."""
    server = ServerProblem(experiment.rounds, experiment.epochs)
    return experiment.method_type(experiment.options, ClientProblem(2, 2), server).rounds


def index(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Finished runs below these folders, by their identity, in the order of the folders."""
    found: dict[str, list[Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"--import {folder}: no such folder")
        for path in sorted(folder.rglob("result.json")):
            saved = read_run(path.parent, f"move {path.parent} away to go on without it")
            if saved is not None:
                found.setdefault(identity(saved.config, int(saved.config["rounds"])), []).append(path.parent)
    if folders and not found:
        raise InputError(f"--import {' '.join(map(str, folders))}: no finished run in there")
    return found
