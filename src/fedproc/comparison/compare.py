"""Methods and variants side by side over several seeds: one folder of runs, a table, a figure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from fedproc.beside import LEFT_OUT, NOTHING_BESIDE, Beside
from fedproc.comparison.beside import asked_beside, has_sites, run_beside
from fedproc.comparison.overrides import merged
from fedproc.comparison.own_accuracy import FINAL, of_global_model
from fedproc.comparison.searched import SEARCHED, expect_unsearched, searched_seeds
from fedproc.comparison.sites import SiteRow, compared, site_rows
from fedproc.data import SOURCES
from fedproc.effect import expect_effect
from fedproc.errors import InputError, meant, with_flags
from fedproc.experiment import Experiment
from fedproc.files import write_file, write_json
from fedproc.given import flag
from fedproc.methods import METHODS
from fedproc.methods.method import Method
from fedproc.methods.own import with_own
from fedproc.methods.plugin import all_methods
from fedproc.objects import Own, named
from fedproc.runs.folder import differences
from fedproc.runs.keeper import Fresh
from fedproc.runs.lock import Lock, expect_below, expect_folder
from fedproc.runs.saved import SavedRun, read_run
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.watching import Watcher
from fedproc.simulation.workers.choice import Asked
from fedproc.simulation.workers.run import run_many
from fedproc.statistics import Paired
from fedproc.statistics import compare as paired

Given = dict[str, Any]
# in what compared runs may differ: the method, the seed, and what is evaluated and saved
MAY_DIFFER = {"method", "plugin_sha256", "data_seed", "model_seed", "keep_clients", "eval_every"}


class Seeded(Protocol):
    """A run as comparisons need it."""

    @property
    def seed(self) -> int: ...

    @property
    def result(self) -> Given: ...

    @property
    def metrics(self) -> list[Given]: ...

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> Path | None: ...


@dataclass(frozen=True)
class Row:
    """A method or variant: its finished runs, in the order of the seeds, the seeds that diverged or failed, and these
    runs.
    """

    label: str
    runs: Sequence[Seeded]
    diverged: list[int]
    failed: list[int] = field(default_factory=list)
    ended: Sequence[Seeded] = ()

    @classmethod
    def of(cls, label: str, over: Iterable[Seeded]) -> Row:
        """From runs that have ended, in any order."""
        ordered = sorted(over, key=lambda run: run.seed)
        by_status = {
            status: [run for run in ordered if run.result["status"] == status]
            for status in ("finished", "diverged", "failed")
        }
        diverged, failed = by_status["diverged"], by_status["failed"]
        seeds = [[run.seed for run in runs] for runs in (diverged, failed)]
        return cls(label, by_status["finished"], seeds[0], seeds[1], [*diverged, *failed])

    @property
    def reasons(self) -> dict[str, list[int]]:
        """What ended runs early, each in words with the seeds that it ended."""
        found: dict[str, list[int]] = {}
        for run in self.ended:
            result = run.result
            found.setdefault(f"{result['status']} in round {result['round']}: {result['reason']}", []).append(run.seed)
        return found

    @property
    def method(self) -> str:
        """Of its runs, or what it is called."""
        return self.runs[0].method if self.runs else self.label

    def by_seed(self, name: str) -> dict[int, float]:
        """A number of result.json for each seed that finished; as own accuracy of a row without models of clients' own
        what its global model has by the same rule.
        """
        found = {run.seed: run.result[name] for run in self.runs if name in run.result}
        if not found and name.endswith(FINAL):
            found = {run.seed: value for run in self.runs if (value := of_global_model(run)) is not None}
        for seed, value in found.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(
                    f"result.json of {self.label}, seed {seed}: {name} {str(value)[:60]}: expected a number"
                )
        return found

    def has(self, name: str) -> bool:
        """Whether result.json of a run has this number."""
        return any(name in run.result for run in self.runs)

    def spread(self, name: str) -> tuple[float, float | None] | None:
        """Mean and sample deviation over seeds of a number of result.json; no deviation of one seed."""
        values = list(self.by_seed(name).values())
        if not values:
            return None
        return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


@dataclass(frozen=True)
class Comparison:
    """All rows, and their folder."""

    rows: list[Row]
    path: Path | None
    reference: str

    def paired(self, name: str) -> dict[str, Paired]:
        """Each row's difference to the reference in a number of result.json."""
        return paired({row.label: row.by_seed(name) for row in self.rows}, self.reference)

    def has(self, name: str) -> bool:
        """Whether a row has this number, whose name is given without prefix."""
        return any(row.has(f"{self.prefix}{name}") for row in self.rows)

    @property
    def prefix(self) -> str:
        """The prefix of accuracies' names: none, or val_ where validation samples were held out."""
        return "val_" if any("val_final_accuracy" in run.result for row in self.rows for run in row.runs) else ""


def compare(
    methods: Sequence[str | type[Method]] = ("fedavg", "fedproc"),
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path | None = None,
    *,
    variants: Mapping[str, Given] | None = None,
    reference: str | None = None,
    fresh: Fresh = False,
    watcher: Watcher | None = None,
    interrupt: Interrupt | None = None,
    workers: Asked = 1,
    beside: Beside = NOTHING_BESIDE,
    beside_watcher: Watcher | None = None,
    **given: Any,
) -> Comparison:
    """Run every method and variant with every seed; `given` are fields of Experiment shared by all.

    Differences are to `reference`, a method or variant: FedAvg where it takes part, else the first. Called again with
    more seeds or methods, it continues the folder and includes the runs that are in it; `fresh` starts the ones asked
    for over (`"unfinished"`: those that are not finished with these very settings). Methods may be classes of your own.
    A variant with `search_seeds` won a search with these, and is not tested on them. `workers` are processes that share
    the work, a number or `auto`. Where the clients are real sites, `beside` may add SOLO as a row, and fine-tune each
    run at each site, in a folder inside its own, with `beside_watcher` looking on.
    """
    names = named(methods)
    if len(set(names)) != len(names):
        raise InputError(f"--methods {' '.join(names)}: expected each method once")
    searched = {label: searched_seeds(label, values) for label, values in (variants or {}).items()}
    variants = {
        label: {name: value for name, value in values.items() if name != SEARCHED}
        for label, values in (variants or {}).items()
    }
    own = Own().with_methods([*methods, *(v["method"] for v in variants.values() if "method" in v)])
    known = with_own(all_methods([Path(path) for path in given.get("plugin") or ()]), own.methods)
    overrides: dict[str, Given] = {method: {"method": method} for method in names}
    for label, values in variants.items():
        if "method" in values:
            (values["method"],) = named([values["method"]])
        if "seed" in values:
            raise InputError(f"variant {label}: seed {values['seed']}: seeds are those of the whole comparison")
        if label in overrides or "/" in label or label.startswith("."):
            raise InputError(f"variant {label}: expected a unique name that can name a folder")
        method = values.get("method", Experiment.model_fields["method"].default)
        if label in known and label != method:
            raise InputError(f"variant {label}: is the name of a method, but its method is {method}; take another name")
        for other in (name.partition(".")[0].replace("_", "-") for name in values):
            if other in known and other != method:
                raise InputError(f"variant {label}: options of {other}, but its method is {method}")
        overrides[label] = dict(values)
    if beside.alone and overrides and _lacks_solo(given, overrides, own):
        solo: Given = {**dict.fromkeys(LEFT_OUT - {"plugin", "options"}), "method": "solo"}
        if any(merged(given, values).get("keep") == "best" for values in overrides.values()):
            solo["predictions"] = "test"  # kept models meet the test images, and so do these
        overrides["solo"] = solo
    if not overrides or not seeds:
        raise InputError("--methods and --seeds: expected at least one of each")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds {' '.join(map(str, seeds))}: expected each seed once")
    folder = Path(out) if out is not None else None
    asked = {f"{label}/seed-{seed}" for label in overrides for seed in seeds}
    saved = _saved(folder, asked) if folder else {}
    others = [label for label, rest in saved.items() if label not in overrides and any(run.result for run in rest)]
    labels = usual_order([*others, *overrides], known) if others else list(overrides)
    if reference is None:
        reference = usual_reference(labels)
    elif reference not in labels:
        raise InputError(f"--reference {reference}: expected one of {', '.join(labels)}{meant(reference, labels)}")
    experiments: dict[str, tuple[Experiment, Path | None]] = {}
    for label, values in overrides.items():
        for seed in seeds:
            try:
                experiment = Experiment(own, **merged({**given, "seed": seed}, values))
            except InputError as error:
                text = with_flags(error)
                text = f"variant {label}: {text}" if label in variants else text
                raise InputError(LISTED.sub(r"--\1s ", text)) from error
            fixed = {name: value for name, value in merged(given, values).items() if value is not None}
            if len(seeds) > 1 and {"data_seed", "model_seed"} <= set(fixed):
                raise InputError("--data-seed and --model-seed: both are fixed, so all --seeds would give the same run")
            experiments[f"{label}/seed-{seed}"] = (experiment, folder / label / f"seed-{seed}" if folder else None)
    for label, used in searched.items():
        expect_unsearched(label, used, [experiments[f"{label}/seed-{seed}"][0] for seed in seeds])
    made = [experiment for experiment, _ in experiments.values()]
    _expect_effect(given, overrides, variants or {}, made, seeds)
    beside.expect_sites(made)
    rows_of = {label: experiments[f"{label}/seed-{seeds[0]}"][0] for label in overrides}
    for label, rest in saved.items():
        _check_settings(label, rest, rows_of, known)
    held_out = {label.rpartition("/")[0]: experiment.val_fraction for label, (experiment, _) in experiments.items()}
    if len({fraction > 0 for fraction in held_out.values()}) > 1:
        shares = ", ".join(f"{fraction:g} for {label}" for label, fraction in held_out.items())
        raise InputError(f"--val-fraction {shares}: expected all rows with validation samples, or none")
    for _, path in experiments.values():
        if folder is not None and path is not None:
            expect_below(folder, path)
    lock = Lock(folder) if folder else None
    try:
        how: Given = {"fresh": fresh, "watcher": watcher, "interrupt": interrupt}
        runs = {run.label: run for run in run_many(experiments, workers, folder, **how)}
        done: dict[str, list[Seeded]] = {label: [s for s in saved.get(label, []) if s.result] for label in labels}
        for label in overrides:
            done[label] += [runs[f"{label}/seed-{seed}"] for seed in seeds]
        comparison = Comparison([Row.of(label, runs_) for label, runs_ in done.items()], folder, reference)
        if folder is not None:
            from fedproc.figures.curves import draw_curves  # matplotlib takes a while to import
            from fedproc.figures.differences import draw_differences

            write_json(folder / "comparison.json", summary(comparison))
            write_file(folder / "curves.png", draw_curves(curves(comparison)).save)
            if found := comparison.paired(f"{comparison.prefix}final_accuracy"):
                write_file(folder / "differences.png", draw_differences(found, comparison.reference).save)
        tuning = replace(beside, alone=False)
        if folder is not None and (asked_too := asked_beside(runs.values(), tuning)):
            run_beside(asked_too, folder, workers=workers, **{**how, "watcher": beside_watcher or watcher})
        return comparison
    finally:
        if lock is not None:
            lock.release()


def _lacks_solo(given: Given, overrides: Mapping[str, Given], own: Own) -> bool:
    """Whether the clients are real sites, and no row shows what each has alone."""
    methods = {values.get("method") for values in overrides.values()}
    try:
        first = Experiment(own, **merged(given, next(iter(overrides.values()))))
    except InputError:  # which is said with the row's name
        return False
    return has_sites(first) and "solo" not in methods and "solo" not in overrides


def sites_of(comparison: Comparison) -> list[SiteRow]:
    """What each real site has of each federated row, beside what it has alone."""
    alone: dict[int, Path] = {}
    federated = []
    for row in comparison.rows:
        runs = {run.seed: run.path for run in row.runs if run.path is not None}
        kind = METHODS.get(row.method)
        if runs and row.method == "solo" and not alone:
            alone = runs
        elif runs and (kind is None or kind.federated):
            federated.append((row.label, runs))
    return site_rows([compared(label, runs, alone) for label, runs in federated])


def _expect_effect(
    given: Given,
    overrides: Mapping[str, Given],
    variants: Mapping[str, Given],
    experiments: Sequence[Experiment],
    seeds: Sequence[int],
) -> None:
    """Refuse what changes no row, and what changes nothing in the variant it was given for."""
    expect_effect(given, experiments)
    for label, first in zip(overrides, experiments[:: len(seeds)], strict=True):
        try:
            expect_effect(variants.get(label, {}), [first])
        except InputError as error:
            raise InputError(f"variant {label}: {with_flags(error)}") from error


def rows_in(folder: Path, without: Collection[str] = ()) -> dict[str, list[SavedRun]]:
    """The runs FOLDER/<label>/seed-<n>, finished or not."""
    found: dict[str, list[SavedRun]] = {}
    for home in sorted(path.parent for path in folder.glob("*/seed-*/config.json")):
        if f"{home.parent.name}/{home.name}" not in without:
            run = read_run(home, f"move {home} away to compare without it")
            if run is not None:
                found.setdefault(home.parent.name, []).append(run)
    return found


def _saved(folder: Path, asked: Collection[str]) -> dict[str, list[SavedRun]]:
    """The rows of a comparison's folder, without the runs that were asked for."""
    expect_folder(folder)
    if read_run(folder) is not None:
        raise InputError(f"--out {folder}: is a run's own folder; expected one for many runs")
    return rows_in(folder, asked)


def _check_settings(
    label: str, saved: Sequence[SavedRun], rows: Mapping[str, Experiment], known: Mapping[str, type[Method]]
) -> None:
    """Refuse runs of different settings in one row, and methods of different settings in one comparison. A variant
    may differ from the other rows.
    """
    plain = [name for name in rows if name in known]
    new = rows.get(label) or (rows[plain[0]] if plain and label in known else None)
    if new is None:
        return
    kinds = [known[method] for method in (new.method, saved[0].method) if method in known]
    follows = {  # set by the data, by the method, or by what the preset has for it
        "clients": new.partition in ("natural", "file"),
        "rounds": any(kind.rounds is not Method.rounds for kind in kinds),
        **dict.fromkeys(LEFT_OUT, any(not kind.federated for kind in kinds)),
    }
    for run in saved:
        if run.config["data"] != new.data and {run.config["data"], new.data} & set(SOURCES):
            raise InputError(f"--data {new.data}: {run.folder} has {run.config['data']}; take that, or another --out")
        for path, before, after in differences(run.config, new.config()):
            options = label not in rows and path in known
            data = path == "fingerprint" or path.endswith("_sha256")  # known only once they are read
            if not (options or data or path in MAY_DIFFER or follows.get(path, False)):
                raise InputError(
                    f"{flag(path)} {after}: {run.folder} has {before}, and both would stand in one comparison; "
                    "take that, or another --out"
                )


def usual_order(labels: Sequence[str], methods: Iterable[str] = METHODS) -> list[str]:
    """Methods as they are listed, then variants."""
    known = list(methods)
    return [label for label in known if label in labels] + [label for label in labels if label not in known]


def usual_reference(labels: Sequence[str]) -> str:
    """FedAvg where it takes part, else the first."""
    return "fedavg" if "fedavg" in labels else labels[0]


LISTED = re.compile("^--(seed|method) ")  # of which a comparison takes several
ACCURACIES = ("final_accuracy", "last10_accuracy", "final_prototype_accuracy", "last10_prototype_accuracy")
SOMETIMES = (FINAL, "final_ccvr_accuracy", "final_lda_accuracy")  # what not all methods and options have


def summary(comparison: Comparison) -> Given:
    """What comparison.json holds."""
    prefix = comparison.prefix
    shown = [*ACCURACIES, *(name for name in SOMETIMES if comparison.has(name))]
    by_name = {prefix + name: comparison.paired(prefix + name) for name in shown}
    rows: Given = {}
    for row in comparison.rows:
        spreads = {name: row.spread(name) for name in [*by_name, f"{prefix}best_accuracy", "seconds"]}
        numbers = {name: {"mean": s[0], "deviation": s[1]} for name, s in spreads.items() if s is not None}
        against = {
            name: {**asdict(found[row.label]), "verdict": found[row.label].verdict}
            for name, found in by_name.items()
            if row.label in found
        }
        rows[row.label] = {
            "seeds": len(row.runs),
            "diverged": row.diverged,
            "failed": row.failed,
            **numbers,
            "difference": against,
        }
        if prefix + FINAL in numbers:
            rows[row.label]["own_accuracy_of"] = "clients' own models" if row.has(prefix + FINAL) else "global model"
    seeds = sorted(
        {seed for row in comparison.rows for seed in [*row.diverged, *row.failed, *(run.seed for run in row.runs)]}
    )
    primary = f"{prefix}final_accuracy"
    return {"seeds": seeds, "reference": comparison.reference, "primary": primary, "rows": rows}


def curves(comparison: Comparison) -> dict[str, list[list[Given]]]:
    """The records of each row's runs."""
    return {row.label: [run.metrics for run in row.runs] for row in comparison.rows}
