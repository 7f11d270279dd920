"""Runs a search: trials in batches, rung after rung, over whatever processes and lanes there are.

What is on disk is all there is to remember: the plan (sweep.json), the trials that were asked for (trials.json), and
their run folders ROW/trial-N/rung-R/seed-S. Killed anywhere, the same call goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproc.comparison.own_accuracy import of_global_model
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.files import write_json
from fedproc.methods.plugin import all_methods
from fedproc.runs.lock import Lock, expect_below, expect_folder
from fedproc.runs.saved import SavedRun, read_run
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.watching import Watcher
from fedproc.simulation.workers.choice import Asked
from fedproc.simulation.workers.run import run_many
from fedproc.sweep.cautions import cautions
from fedproc.sweep.plan import SCORES, TRIALS, Given, Plan, PlannedRow, Rung, begin, make_plan
from fedproc.sweep.ranking import Trial, ranked
from fedproc.sweep.space import Values, read_space

Recorded = dict[str, list[Values]]


@dataclass(frozen=True)
class Swept:
    """A finished search: each row's trials, the best first."""

    plan: Plan
    rows: dict[str, list[Trial]]
    path: Path


def sweep(
    space: str | Path,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (100,),
    out: str | Path = "runs/sweep",
    *,
    trials: int | None = None,
    promote: Sequence[tuple[int, int, Sequence[int]]] = (),
    variants: Mapping[str, Given] | None = None,
    search: str = "random",
    search_seed: int = 0,
    batch: int = 4,
    score: str | None = None,
    caution: Callable[[str], object] = str,
    watcher: Watcher | None = None,
    interrupt: Interrupt | None = None,
    workers: Asked = 1,
    **given: Any,
) -> Swept:
    """Search the best options of every method and variant; `given` are fields of Experiment shared by all.

    Every row has as many trials, the first at its defaults, as runs with `seeds` and the given rounds; (K, ROUNDS,
    SEEDS) in `promote` has the best K go on as new runs. Scores are of validation samples; the test set is not touched.
    Without a `score` they are own accuracies where every row has models of clients' own, and else final accuracies.
    `caution` gets a sentence for each thing that was asked for and is not what it seems, before anything is run.
    """
    from fedproc.sweep.outcome import write_outcome  # matplotlib takes a while to import

    known = all_methods([Path(path) for path in given.get("plugin") or ()])
    rows = _rows(methods, variants or {})
    for label, values in rows.items():
        if values["method"] not in known:
            raise InputError(f"--methods {values['method']}: expected one of {', '.join(known)}")
        if (label in known and label != values["method"]) or "/" in label or label.startswith("."):
            raise InputError(f"variant {label}: expected a name that can name a folder and is no other method's")
    rounds = int(given.get("rounds") or Experiment.model_fields["rounds"].default)
    rungs = [Rung(rounds, tuple(seeds)), *(Rung(r, tuple(s), k) for k, r, s in promote)]
    if not all(rung.seeds for rung in rungs):
        raise InputError("--seeds: expected at least one for each rung")
    plan = make_plan(
        read_space(Path(space), known), rows, rungs, trials, search, search_seed, batch, score, given
    )  # fmt: skip
    folder = Path(out)
    expect_folder(folder)
    for each in cautions(plan):
        caution(each)
    lock = Lock(folder)
    try:
        how: Given = {"watcher": watcher, "interrupt": interrupt}
        swept = _Search(plan, folder, workers, how).work()
        write_outcome(swept)
        return swept
    finally:
        lock.release()


def _rows(methods: Sequence[str], variants: Mapping[str, Given]) -> dict[str, Given]:
    if len(set(methods)) != len(methods):
        raise InputError(f"--methods {' '.join(methods)}: expected each method once")
    rows: dict[str, Given] = {method: {"method": method} for method in methods}
    for label, values in variants.items():
        if label in rows:
            raise InputError(f"variant {label}: is a row already; expected another name")
        rows[label] = {"method": Experiment.model_fields["method"].default, **values}
    return rows


class _Search:
    def __init__(self, plan: Plan, folder: Path, workers: Asked, how: Given) -> None:
        self._plan, self._folder, self._workers, self._how = plan, folder, workers, how
        self._recorded: Recorded = {row.label: [] for row in plan.rows} | begin(plan, folder)

    def work(self) -> Swept:
        plan = self._plan
        while True:
            self._run(0, {row.label: range(len(self._trials(row))) for row in plan.rows})
            if not self._ask():
                break
        chosen: dict[str, Sequence[int]] = {row.label: range(len(self._trials(row))) for row in plan.rows}
        for place, rung in enumerate(plan.rungs[1:], start=1):
            for row in plan.rows:
                before = [self._trial(row, number, place) for number in chosen[row.label]]
                chosen[row.label] = [t.number - 1 for t in ranked(before) if not t.broken][: rung.keep]
            self._run(place, chosen)
        rows = {
            row.label: ranked([self._trial(row, n, len(plan.rungs)) for n in range(len(self._trials(row)))])
            for row in plan.rows
        }
        return Swept(plan, rows, self._folder)

    def _trials(self, row: PlannedRow) -> list[Values]:
        """Those on record, as many as are wanted: a folder may have more."""
        return self._recorded[row.label][: self._plan.trials]

    def _ask(self) -> bool:
        """Put the next batch of every row on record; whether there is one."""
        more = {}
        for row in self._plan.rows:
            tried = self._trials(row)
            scores = [self._trial(row, number, 1).mean(0) for number in range(len(tried))]
            more[row.label] = self._plan.proposed(row, tried, scores)
        for label, values in more.items():
            self._recorded[label] += values
        if any(more.values()):
            write_json(self._folder / TRIALS, self._recorded)
        return any(more.values())

    def _run(self, rung: int, chosen: Mapping[str, Sequence[int]]) -> None:
        """Have these trials' runs of a rung made, those that are not there yet."""
        asked: dict[str, tuple[Experiment, Path | None]] = {}
        for row in self._plan.rows:
            for number in chosen[row.label]:
                for seed in self._plan.rungs[rung].seeds:
                    home = self._home(row, number, rung, seed)
                    expect_below(self._folder, home)
                    if self._over(home, rung) is None:
                        experiment = self._plan.experiment(row, self._recorded[row.label][number], rung, seed)
                        asked[str(home.relative_to(self._folder))] = (experiment, home)
        if asked:
            run_many(asked, self._workers, self._folder, **self._how)

    def _home(self, row: PlannedRow, number: int, rung: int, seed: int) -> Path:
        return self._folder / row.label / f"trial-{number + 1}" / f"rung-{rung + 1}" / f"seed-{seed}"

    def _score(self, run: SavedRun) -> float | None:
        """None of one that diverged or failed. Values that leave clients without own models have the global one's."""
        found = run.result.get(SCORES[self._plan.score])
        return (
            of_global_model(run) if found is None and self._plan.score == "own" and run.status == "finished" else found
        )

    def _over(self, home: Path, rung: int) -> SavedRun | None:
        """A run that is over."""
        saved = read_run(home, f"remove {home} to have this run made again")
        if saved is None:
            return None
        if saved.config["rounds"] != (rounds := self._plan.rungs[rung].rounds):
            was = saved.config["rounds"]
            raise InputError(f"--promote: {rounds} rounds: {home} has {was}; take that, or another --out")
        return saved if saved.result else None

    def _trial(self, row: PlannedRow, number: int, rungs: int) -> Trial:
        """A trial as its run folders have it, in the first so many rungs."""
        scores: list[dict[int, float | None]] = []
        for place, rung in enumerate(self._plan.rungs[:rungs]):
            found: dict[int, float | None] = {}
            for seed in rung.seeds:
                saved = self._over(self._home(row, number, place, seed), place)
                if saved is not None:
                    found[seed] = self._score(saved)
            if len(found) < len(rung.seeds):
                break
            scores.append(found)
        sets = self._recorded[row.label][number]
        return Trial(number + 1, sets, self._plan.resolved(row, sets), tuple(scores))
