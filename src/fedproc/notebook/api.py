"""Run, compare, and open what is on disk, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedproc.beside import Beside
from fedproc.comparison.beside import asked_beside, run_beside
from fedproc.comparison.compare import Row, Seeded, rows_in, usual_order, usual_reference
from fedproc.comparison.compare import compare as compare_all
from fedproc.errors import InputError, meant
from fedproc.experiment import Experiment
from fedproc.methods.method import Method
from fedproc.networks.own import Encoder
from fedproc.notebook.results import Classifier, Comparison, Run
from fedproc.runs import model
from fedproc.runs.keeper import Fresh
from fedproc.runs.saved import SavedRun, read_run
from fedproc.runs.schema import read_json
from fedproc.simulation import drive
from fedproc.simulation.watching import Everybody, Watcher
from fedproc.simulation.workers.choice import Asked
from fedproc.watchers.line import usual
from fedproc.watchers.trackers import finish, trackers

Place = str | Path
Names = str | Iterable[str]
OFF = "alone=False"


def run(
    experiment: Experiment,
    out: Place | None = None,
    *,
    fresh: bool = False,
    alone: bool | None = None,
    fine_tune: int | None = None,
    progress: bool = True,
    watcher: Watcher | None = None,
    log: Names = (),
) -> Run:
    """Run an experiment, or continue it where its folder left off; without `out` nothing is written.

    `progress=False` shows nothing; `watcher` is told of every round; `log` names trackers (tensorboard, mlflow, wandb).
    Where the clients are real sites and there is a folder, each site is also trained by itself, and from the common
    model on for `fine_tune` epochs: `Run.sites` compares them. `alone=False` and `fine_tune=0` leave that out.
    """
    home = None if out is None else Path(out)
    beside = Beside.asked(alone, fine_tune, OFF)
    beside.expect_sites([experiment])
    tracking = trackers(log, home)
    watching = _watching(progress, watcher, tracking)
    done = drive.run(experiment, home, fresh=fresh, watcher=watching)
    finish(tracking, [done])
    if home is not None and (asked := asked_beside([done], beside)):
        run_beside(asked, home, fresh=fresh, watcher=_watching(progress, None, []))
    return _run(done)


def compare(
    methods: Sequence[str | type[Method]] = ("fedavg", "fedproc"),
    seeds: Sequence[int] = (0, 1, 2),
    out: Place | None = None,
    *,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    reference: str | None = None,
    fresh: Fresh = False,
    workers: Asked = 1,
    alone: bool | None = None,
    fine_tune: int | None = None,
    progress: bool = True,
    watcher: Watcher | None = None,
    log: Names = (),
    **given: Any,
) -> Comparison:
    """Run every method and variant with every seed; `given` are fields of Experiment shared by all.

    Methods are names or classes of your own. Differences are to `reference`, a method or variant: FedAvg where it takes
    part, else the first. Called again with more seeds or methods, it continues the folder `out` and includes the runs
    that are in it; `fresh` starts those that are asked for over (`"unfinished"`: where they are not finished with these
    very settings). `workers` are processes that share the work, a number or `auto`. Where the clients are real sites
    and there is a folder, SOLO is a row too, and each run is fine-tuned at each site for `fine_tune` epochs:
    `Comparison.sites` compares them. `alone=False` and `fine_tune=0` leave that out.
    """
    home = None if out is None else Path(out)
    tracking = trackers(log, home)
    how: dict[str, Any] = {"reference": reference, "fresh": fresh, "workers": workers}
    how |= {"variants": variants, "watcher": _watching(progress, watcher, tracking)}
    wanted = Beside.asked(alone, fine_tune, OFF)
    how |= {"beside": replace(wanted, alone=wanted.alone and home is not None)}
    how |= {"beside_watcher": _watching(progress, None, [])}
    done = compare_all(methods, seeds, home, **how, **given)
    finish(tracking, (each for row in done.rows for each in row.runs if isinstance(each, drive.Run)))
    return Comparison([_row(row) for row in done.rows], done.path, done.reference)


def open_run(path: Place) -> Run:
    """The run in a folder, finished or not."""
    found = read_run(Path(path))
    if found is None:
        raise InputError(f"{path}: no run is in it; expected the folder of one (with config.json)")
    return _saved(found, Path(path).name)


def open_comparison(path: Place, reference: str | None = None) -> Comparison:
    """The finished runs FOLDER/<label>/seed-<n> of a comparison's folder."""
    home = Path(path)
    found = {label: [each for each in runs if each.result] for label, runs in rows_in(home).items()}
    about = read_json(home / "comparison.json") or {}
    order = [*about.get("rows", {}), *usual_order(list(found))]
    labels = [label for label in dict.fromkeys(order) if found.get(label)]
    if not labels:
        raise InputError(f"{home}: no finished run is in it; expected the folder of a comparison (<label>/seed-<n>)")
    before = str(about.get("reference"))
    named = reference or (before if before in labels else usual_reference(labels))
    if named not in labels:
        raise InputError(f"--reference {named}: expected one of {', '.join(labels)}{meant(named, labels)}")
    return Comparison([_row(Row.of(label, found[label])) for label in labels], home, named)


def load_model(path: Place, network: str | Encoder | None = None) -> Classifier:
    """The trained network of a run folder, or of a model file, as a plain module.

    `network` is your own encoder, or its import path, where it was trained with one.
    """
    return Classifier(model.load_model(Path(path), network=network))


def _watching(progress: bool, watcher: Watcher | None, tracking: Sequence[Watcher]) -> Watcher:
    shown = [usual()] if progress else []
    return Everybody([*shown, *([watcher] if watcher is not None else []), *tracking])


def _run(done: drive.Run) -> Run:
    e = done.experiment
    return Run(done.label, e.config(), done.result, done.metrics, done.path, e, done.models, done.about)


def _saved(found: SavedRun, label: str) -> Run:
    return Run(str(found.result.get("label", label)), found.config, found.result, found.metrics, found.folder)


def _row(row: Row) -> Row:
    return replace(row, runs=_shown(row.runs, row.label), ended=_shown(row.ended, row.label))


def _shown(runs: Iterable[Seeded], label: str) -> list[Seeded]:
    """Runs as those who look at them have them."""
    made = [_run(each) if isinstance(each, drive.Run) else each for each in runs]
    return [_saved(each, label) if isinstance(each, SavedRun) else each for each in made]
