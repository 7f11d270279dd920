"""Rows, trials and rungs, made into experiments, and what a folder was begun with."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedproc.comparison.overrides import merged
from fedproc.comparison.searched import SEARCHED, searched_seeds
from fedproc.effect import expect_effect
from fedproc.errors import InputError, with_flags
from fedproc.experiment import FREE, Experiment
from fedproc.files import write_json
from fedproc.given import flag
from fedproc.runs.schema import read_json
from fedproc.sweep.own_models import without_own_models
from fedproc.sweep.proposals import SEARCHES, Search, Shared, candidates, grid_size
from fedproc.sweep.space import Domain, Space, Value, Values

Given = dict[str, Any]
HELD_OUT = 0.1  # validation share where none is given
SCORES = {
    "final": "val_final_accuracy",
    "last10": "val_last10_accuracy",
    "prototype": "val_final_prototype_accuracy",
    "own": "val_final_own_accuracy",
}
SWEEP, TRIALS = "sweep.json", "trials.json"


@dataclass(frozen=True)
class Rung:
    """Trials as runs of so many rounds with these seeds: all of them (keep None), or the best of the rung before."""

    rounds: int
    seeds: tuple[int, ...]
    keep: int | None = None


@dataclass(frozen=True)
class PlannedRow:
    """A method or variant: what it fixes, what is searched of it, and the seeds of an earlier search that chose what it
    fixes.
    """

    label: str
    method: str
    fixed: Given
    domains: Mapping[str, Domain]
    searched: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A whole search, before it is known what comes out of it."""

    rows: tuple[PlannedRow, ...]
    rungs: tuple[Rung, ...]
    trials: int | None  # None: a whole grid
    search: Search
    seed: int
    batch: int
    score: str
    space: Space
    given: Given
    apart: tuple[str, ...] = ()  # rows with models of clients' own, which their own accuracy is not asked of

    def experiment(self, row: PlannedRow, values: Values, rung: int, seed: int) -> Experiment:
        """One run."""
        made = merged(merged(self.given, row.fixed), as_overrides(values))
        return Experiment(**{**made, "rounds": self.rungs[rung].rounds, "seed": seed})

    def resolved(self, row: PlannedRow, values: Values) -> Values:
        """Every searched option with its value, also of those that stay at their defaults."""
        config = self.experiment(row, values, 0, 0).config()
        found = {}
        for name in row.domains:
            table, _, option = name.rpartition(".")
            found[name] = config[table][option] if table else config[name]
        return found

    def proposed(self, row: PlannedRow, tried: Sequence[Values], scores: Sequence[float | None]) -> list[Values]:
        """The next trials of a row, new ones alone; the first of all are the row's defaults. Combinations of values
        that the experiment refuses are no part of the space.
        """
        wanted = self._next(len(tried)) - len(tried)
        seen = {self._identity(row, values) for values in tried}
        found: list[Values] = []

        def take(values: Values) -> None:
            try:
                identity = self._identity(row, values)
            except InputError:
                return
            if identity not in seen:
                seen.add(identity)
                found.append(values)

        if not tried and wanted:
            take({})
        told = [(self.resolved(row, v), 0.0 if s is None else s) for v, s in zip(tried, scores, strict=True)]
        if len(found) < wanted and row.domains:
            for values in candidates(self.search, row.domains, self._shared(row), self.seed, told):
                take(values)
                if len(found) >= wanted:
                    break
        return found

    def _shared(self, row: PlannedRow) -> Shared:
        config = self.experiment(row, {}, 0, 0).config()
        return Shared(self.space.shared, {name: config[name] for name in self.space.shared})

    def _next(self, tried: int) -> int:
        """How many trials there are to be after the next batch."""
        most = self.trials if self.trials is not None else 1 << 60
        return min(most, tried - tried % self.batch + self.batch) if self.search == "tpe" else most

    def _identity(self, row: PlannedRow, values: Values) -> str:
        return json.dumps(self.experiment(row, values, 0, 0).config(), sort_keys=True)

    def written(self) -> Given:
        """What the folder has on record, and what a command that continues it must agree with. More trials, rungs and
        seeds may follow.
        """
        rows = {}
        for row in self.rows:
            config = self.experiment(row, {}, 0, self.rungs[0].seeds[0]).config()
            rows[row.label] = {name: value for name, value in config.items() if name not in FREE | {"seed"}}
            rows[row.label] |= {name: None for name in ("data_seed", "model_seed") if name not in self.given}
        tpe = {"batch": self.batch} if self.search == "tpe" else {}
        return {"search": self.search, "search_seed": self.seed, **tpe, "space": self.space.written(), "rows": rows}


def as_overrides(values: Values) -> Given:
    """Options by their full names, as tables: fedproc.tau -> {"fedproc": {"tau": ...}}."""
    made: Given = {}
    for name, value in values.items():
        table, _, option = name.rpartition(".")
        if table:
            made.setdefault(table, {})[option] = value
        else:
            made[name] = value
    return made


def make_plan(
    space: Space,
    variants: Mapping[str, Given],
    rungs: Sequence[Rung],
    trials: int | None,
    search: str,
    seed: int,
    batch: int,
    score: str | None,
    given: Given,
) -> Plan:
    """A plan whose every part was checked; `variants` are the rows, a method being one that only names itself. Without
    a `score` it is own accuracy where every row has models of clients' own, and final accuracy otherwise.
    """
    if search not in SEARCHES:
        raise InputError(f"--search {search}: expected grid, random or tpe")
    if score is not None and score not in SCORES:
        raise InputError(f"--score {score}: expected {', '.join(SCORES)}")
    if trials is None and search != "grid":
        raise InputError(f"--search {search}: needs --trials, the number of trials of each row")
    for name, number in (("trials", trials), ("batch", batch)):
        if number is not None and number < 1:
            raise InputError(f"--{name} {number}: expected at least 1")
    if not variants:
        raise InputError("--methods: expected at least one method")
    _check_rungs(rungs)
    held_out = {"val_fraction": HELD_OUT, **{k: v for k, v in given.items() if v is not None}}
    for name in (*space.shared, "rounds", "seed", "data_seed", "model_seed"):
        if name in given and name not in ("rounds", "seed"):
            why = "is searched" if name in space.shared else "follows the seeds of the rungs"
            raise InputError(f"{flag(name)} {given[name]}: {why}; leave it out")
    rows = []
    for label, values in variants.items():
        method = values["method"]
        fixed = {name.replace("-", "_"): value for name, value in values.items() if name != SEARCHED}
        flat = {name for name, value in fixed.items() if not isinstance(value, dict)}
        flat |= {f"{method}.{option.replace('-', '_')}" for option in fixed.get(method.replace("-", "_"), {})}
        domains = space.of(method, dict.fromkeys(flat))
        rows.append(PlannedRow(label, method, fixed, domains, searched_seeds(label, values)))
    plan = Plan(tuple(rows), tuple(rungs), trials, search, seed, batch, score or "final", space, held_out)
    for row in plan.rows:
        _check_row(plan, row)
    expect_effect(given, [plan.experiment(row, {}, 0, 0) for row in plan.rows])
    return plan if score not in (None, "own") else _scored_by_own(plan, score)


def _scored_by_own(plan: Plan, score: str | None) -> Plan:
    """By own accuracy where every row has models of clients' own. Asked for where one has none it is refused."""
    others = without_own_models({row.label: plan.experiment(row, {}, 0, 0) for row in plan.rows})
    if others and score == "own":
        raise InputError(
            f"--score own: {', '.join(others)} without models of clients' own; search it apart, or take --score final"
        )
    if others:
        return replace(plan, apart=tuple(row.label for row in plan.rows if row.label not in others))
    return replace(plan, score="own")


def _check_rungs(rungs: Sequence[Rung]) -> None:
    seeds = [seed for rung in rungs for seed in rung.seeds]
    if len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds {' '.join(map(str, seeds))}: expected each seed once, in one rung alone")
    for before, rung in itertools.pairwise(rungs):
        if rung.rounds < before.rounds:
            raise InputError(
                f"--promote: {rung.rounds} rounds after a rung of {before.rounds}; expected at least as many"
            )
        if before.keep is not None and rung.keep is not None and rung.keep > before.keep:
            raise InputError(f"--promote: {rung.keep} trials after a rung of {before.keep}; expected at most as many")


def _check_row(plan: Plan, row: PlannedRow) -> None:
    """Refuse what no trial could run with, before anything is run."""
    try:
        experiment = plan.experiment(row, {}, 0, 0)
    except InputError as error:
        raise InputError(f"{row.label}: {with_flags(error)}") from error
    if experiment.val_fraction == 0:
        raise InputError("--val-fraction 0: a search needs validation samples, since it never looks at the test set")
    if experiment.keep == "best":
        raise InputError("--keep best: meets the test images, at which a search never looks; leave it out")
    for name, domain in row.domains.items():
        values: Sequence[Value] = getattr(domain, "values", None) or (domain.at(0.0), domain.at(1.0 - 1e-9))
        for value in values:
            try:
                plan.experiment(row, {name: value}, 0, 0)
            except InputError as error:
                raise InputError(f"{plan.space.path}: {name} = {value}: {with_flags(error)}") from error
    if plan.search == "grid":
        size = grid_size(row.domains)
        if plan.trials is not None and size > plan.trials:
            what = f"its grid has {size} points"
            raise InputError(
                f"--trials {plan.trials}: {row.label}: {what}; leave --trials out, or take --search random"
            )


def begin(plan: Plan, folder: Path) -> dict[str, list[Values]]:
    """The trials that a folder has on record; refuses to continue another search's."""
    written = plan.written()
    before = read_json(folder / SWEEP)
    if before is None:
        write_json(folder / SWEEP, written)
        return {}
    for name in ("search", "search_seed", "batch", "space"):
        if before.get(name) != written.get(name):
            was = f"{folder} was begun with {before.get(name)}"
            raise InputError(f"{flag(name)} {written.get(name)}: {was}; take that, or another --out")
    rows = before.get("rows", {})
    for label, config in written["rows"].items():
        for name, value in rows.get(label, config).items():
            if config.get(name) != value:
                what = f"{flag(name)} {config.get(name)}: {label} in {folder} has {value}"
                raise InputError(f"{what}; take that, or another --out")
    write_json(folder / SWEEP, {**written, "rows": {**rows, **written["rows"]}})
    return dict(read_json(folder / TRIALS) or {})
