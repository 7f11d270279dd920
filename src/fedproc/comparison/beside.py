"""Runs the experiments that stand beside federated ones whose clients are real sites, inside their folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedproc.beside import ALONE, FINE_TUNED, alone, fine_tuned
from fedproc.experiment import Experiment
from fedproc.runs.folder import differences
from fedproc.runs.keeper import file_hash
from fedproc.runs.saved import read_run
from fedproc.simulation.drive import Run
from fedproc.simulation.workers.run import Asking, run_many

FOLLOWS = frozenset({"clients", "rounds"})  # what the data or the method say once they are read


def has_sites(experiment: Experiment) -> bool:
    """Whether its clients are the sites that the data name."""
    return experiment.partition == "natural"


def run_beside(runs: Iterable[Run], with_alone: bool, epochs: int, home: Path, **how: Any) -> None:
    """Beside each finished federated run of real sites: every site alone, and fine-tuned for so many epochs (0: not).
    What is there is continued, and what belongs to another run is made again.
    """
    asked: dict[str, tuple[Experiment, Path | None]] = {}
    for run in runs:
        e, path = run.experiment, run.path
        if path is None or run.result["status"] != "finished" or not (has_sites(e) and e.method_type.federated):
            continue
        made: dict[str, Experiment] = {ALONE: alone(e)} if with_alone else {}
        if epochs and not any(name.endswith("own_accuracy") for name in run.result):  # of clients with their own models
            made[FINE_TUNED] = fine_tuned(e, path / "model.safetensors", epochs)
        asked |= {f"{run.label}, {name}": (experiment, path / name) for name, experiment in made.items()}
    fresh = how.pop("fresh", False)
    old, new = _apart(asked)
    workers = how.pop("workers", 1)
    for each, again in ((old, fresh), (new, True)):
        if each:
            run_many(each, workers, home, fresh=again, **how)


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
