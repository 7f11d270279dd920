"""Runs the experiments that stand beside federated ones whose clients are real sites, inside their folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedproc.beside import ALONE, FINE_TUNED, Beside, alone, fine_tuned
from fedproc.comparison.sites import outcomes
from fedproc.experiment import Experiment
from fedproc.runs.folder import differences
from fedproc.runs.keeper import file_hash
from fedproc.runs.lock import expect_below
from fedproc.runs.saved import read_run
from fedproc.runs.schema import PartitionFile, read
from fedproc.simulation.drive import Run
from fedproc.simulation.workers.run import Asking, run_many

FOLLOWS = frozenset({"clients", "rounds"})  # what the data or the method say once they are read


def has_sites(experiment: Experiment) -> bool:
    """Whether its clients are the sites that the data name."""
    return experiment.partition == "natural"


def asked_beside(runs: Iterable[Run], beside: Beside) -> Asking:
    """What stands beside each finished federated run whose sites have held-out images of their own."""
    asked: dict[str, tuple[Experiment, Path | None]] = {}
    for run in runs:
        e, path = run.experiment, run.path
        if path is None or run.result["status"] != "finished" or not (has_sites(e) and e.method_type.federated):
            continue
        if not _judged(path):
            continue
        made: dict[str, Experiment] = {ALONE: alone(e, int(run.result["rounds"]))} if beside.alone else {}
        if beside.epochs and not _personal(run, path):
            made[FINE_TUNED] = fine_tuned(e, path / "model.safetensors", beside.epochs)
        for name, experiment in made.items():
            expect_below(path, path / name)
            asked[f"{run.label}, {name}"] = (experiment, path / name)
    return asked


def _judged(path: Path) -> bool:
    """Whether a site that trains has held-out images of its own."""
    held, found = read(path / "partition.json", PartitionFile), outcomes(path)
    return any(name in found for name in held.client_names) if held and held.client_names else bool(found)


def _personal(run: Run, path: Path) -> bool:
    """Whether clients have models of their own, so that there is none of all to go on from."""
    if not (path / "model.safetensors").is_file() or any(name.endswith("own_accuracy") for name in run.result):
        return True
    return (path / "models").is_dir() and not run.experiment.keep_clients


def run_beside(asked: Asking, home: Path, **how: Any) -> list[Run]:
    """Run them. What is there is continued, and what belongs to another run is made again."""
    fresh, workers = how.pop("fresh", False), how.pop("workers", 1)
    old, new = _apart(asked)
    done: list[Run] = []
    for each, again in ((old, fresh), (new, True)):
        if each:
            done += run_many(each, workers, home / "beside", fresh=again, **how)
    return done


def _apart(asked: Asking) -> tuple[Asking, Asking]:
    """Those that begin or continue, and those whose folder holds what was made for another state of the run."""
    old: dict[str, tuple[Experiment, Path | None]] = {}
    new: dict[str, tuple[Experiment, Path | None]] = {}
    for label, (experiment, path) in asked.items():
        known = read_run(path) if path is not None else None
        (new if known is not None and _differs(known.config, experiment) else old)[label] = (experiment, path)
    return old, new


def _differs(config: dict[str, Any], experiment: Experiment) -> bool:
    start = experiment.start_from
    if start is not None and config.get("start_from_sha256") != file_hash(start):
        return True
    found = differences(config, experiment.config())
    return any(not (name in FOLLOWS or name == "fingerprint" or name.endswith("_sha256")) for name, _, _ in found)
