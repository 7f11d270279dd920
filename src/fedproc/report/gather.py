"""Runs and exhibits below folders, grouped for the page."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedproc.beside import ALONE, FINE_TUNED
from fedproc.comparison.compare import MAY_DIFFER, Comparison, Row, usual_reference
from fedproc.data import SOURCES
from fedproc.errors import InputError
from fedproc.experiment import FREE, Experiment
from fedproc.methods import METHODS
from fedproc.methods.method import Method
from fedproc.paper.exhibits import EXHIBITS, SCALES
from fedproc.paper.identity import published_by_setting, setting_of
from fedproc.paper.published import Published
from fedproc.runs.saved import SavedRun, read_run
from fedproc.runs.schema import read_json

Record = dict[str, Any]
NOT_COMPARED = FREE | MAY_DIFFER | {"preset", "seed", "format"}
FOLLOWING = {"augment", "normalize_z"}  # defaults follow the data set or the learning rate
DEALT = "partition_file_sha256"  # of a file that says who holds what
IN_TITLE = ("data", "clients", "partition", "beta", "sample", "rounds", "epochs", "lr", "network", "fingerprint")


@dataclass(frozen=True)
class Group:
    """Runs that are compared: of one setting, or those of one `fedproc compare`."""

    title: str
    runs: list[SavedRun]
    under_way: dict[str, list[SavedRun]]  # by label
    comparison: Comparison
    published: dict[str, Published]
    name: str = ""  # of a comparison's folder

    @property
    def pooled(self) -> bool:
        """Whether runs shared stacked lanes, so that their seconds do not measure a method."""
        return any(run.environment.get("executor") == "stacked" and not run.alone for run in self.runs)


@dataclass(frozen=True)
class Exhibited:
    """A table or figure of the paper, as `fedproc paper` wrote it."""

    folder: Path
    content: Record

    @property
    def runs(self) -> list[Path]:
        """The folders of the runs it was made of, whether they are still there or not."""
        found = self.content.get("runs", {}).values()
        paths = [path for paths in found for path in (paths if isinstance(paths, list) else [paths])]
        return [Path(os.path.normpath(self.folder / path)) for path in paths]


@dataclass(frozen=True)
class Gathered:
    """`copies` maps folders of duplicate runs to the folder that is shown."""

    groups: list[Group]
    exhibits: list[Exhibited]
    runs: list[SavedRun]
    copies: dict[Path, Path]
    searches: list[Path]  # folders of `fedproc sweep`, whose runs are in no group


def gather(folders: Sequence[Path], reference: str | None = None) -> Gathered:
    """All runs and exhibits at or below these folders, each once; and the runs that the exhibits are made of."""
    homes: dict[Path, SavedRun] = {}
    exhibits: dict[Path, Exhibited] = {}
    compared: dict[Path, Record] = {}
    searches: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            what = "a file" if folder.exists() else "no such folder"
            raise InputError(f"{folder}: {what}; expected run folders, or folders that hold some")
        for path in sorted(folder.rglob("exhibit.json")):
            exhibits.setdefault(path.parent.resolve(), Exhibited(path.parent, _exhibit(path)))
        for path in sorted(folder.rglob("comparison.json")):
            compared.setdefault(path.parent.resolve(), read_json(path) or {})
        for path in sorted(folder.rglob("sweep.json")):
            searches.setdefault(path.parent.resolve(), path.parent)
        for path in sorted(folder.rglob("config.json")):
            if not _beside(path.parent):
                _take(homes, path.parent)
        for path in sorted(folder.rglob("metrics.jsonl")):
            if not path.with_name("config.json").is_file() and path.with_name("environment.json").is_file():
                what = "config.json is missing beside metrics.jsonl"
                raise InputError(f"{path.parent}: {what}; move it away to have the page without it")
    for exhibit in exhibits.values():
        for path in exhibit.runs:
            if (path / "config.json").is_file():
                _take(homes, path)
    if not homes and not exhibits:
        raise InputError(f"{', '.join(map(str, folders))}: no run folder and no table or figure of the paper in there")
    compare = {home: run for home, run in homes.items() if not searches.keys() & set(home.parents)}
    groups, copies = _groups(compare, compared, reference)
    order = list(EXHIBITS)
    shown = sorted(exhibits.values(), key=lambda e: order.index(e.content["exhibit"]))
    return Gathered(groups, shown, list(homes.values()), copies, list(searches.values()))


def _take(homes: dict[Path, SavedRun], folder: Path) -> None:
    whole = folder.resolve()
    way_out = f"move {folder} away to have the page without it"
    if whole not in homes and (found := read_run(folder, way_out)) is not None:
        homes[whole] = found


def _beside(folder: Path) -> bool:
    """Whether a run stands beside another one, inside its folder."""
    return folder.name in (ALONE, FINE_TUNED) and (folder.parent / "config.json").is_file()


def _mergeless(run: SavedRun) -> bool:
    """Whether the method sets the number of rounds itself, as SOLO does."""
    return run.method in METHODS and METHODS[run.method].rounds is not Method.rounds


def _exhibit(path: Path) -> Record:
    content = read_json(path) or {}
    if content.get("exhibit") not in EXHIBITS or content.get("scale") not in SCALES or "cells" not in content:
        raise InputError(f"{path}: expected what `fedproc paper` writes, got something else")
    return content


Labelled = dict[str, list[SavedRun]]


def _groups(
    homes: dict[Path, SavedRun], compared: dict[Path, Record], reference: str | None
) -> tuple[list[Group], dict[Path, Path]]:
    """Comparisons as requested; other runs by setting, without copies."""
    found: list[tuple[str, Labelled, str | None]] = []  # with the requested reference
    left = dict(homes)
    for folder, content in compared.items():
        listed = content.get("rows")
        others = sorted({home.parent.name for home in left if home.parent.parent == folder})  # of earlier commands
        labels = dict.fromkeys([*(listed if isinstance(listed, dict) else {}), *others])
        mine = {label: [left.pop(home) for home in list(left) if home.parent == folder / label] for label in labels}
        if any(mine.values()):
            rows = {name: same for label, runs in mine.items() for name, same in _unmixed(label, runs).items()}
            found.append((_name(folder), rows, content.get("reference")))
    settings: dict[str, list[SavedRun]] = {}
    copies: dict[Path, Path] = {}
    seen: dict[str, Path] = {}
    split = _split_by_seed([*left.values()])

    def key(run: SavedRun, rounds: bool) -> str:
        return _key(run, rounds, fingerprint=_key(run, False, False) not in split)

    for run in sorted(left.values(), key=lambda run: not run.result):  # an unfinished one counts as the copy
        one = json.dumps([key(run, True), run.variant, run.seed, run.config["data_seed"], run.config["model_seed"]])
        if one in seen:
            copies[run.folder] = seen[one]
            continue
        seen[one] = run.folder
        if not _mergeless(run):
            settings.setdefault(key(run, True), []).append(run)
    for run in left.values():
        if _mergeless(run) and run.folder not in copies:  # joins the runs it is compared with
            matching = [which for which, runs in settings.items() if key(runs[0], False) == key(run, False)]
            most = max(matching, key=lambda which: len(settings[which])) if matching else key(run, True)
            settings.setdefault(most, []).append(run)
    found += [("", _labelled(runs), None) for runs in settings.values()]
    if reference is not None and not any(reference in rows for _, rows, _ in found):
        known = sorted({label for _, rows, _ in found for label in rows})
        raise InputError(f"--reference {reference}: expected one of {', '.join(known)}")
    titles = _titles([[run for runs in rows.values() for run in runs] for _, rows, _ in found])
    groups = []
    for title, (name, rows, asked) in zip(titles, found, strict=True):
        title = f"{name}: {title}" if name and len(found) > 1 else title
        groups.append(replace(_group(title, rows, reference if reference in rows else asked), name=name))
    return groups, copies


def _unmixed(label: str, runs: Sequence[SavedRun]) -> Labelled:
    """A comparison's row; where its runs differ in more than the seed, one for each setting."""
    seeds = {(run.seed, run.config.get(DEALT)) for run in runs}
    each_its_own = len(seeds) == len({seed for seed, _ in seeds}) == len({file for _, file in seeds})
    apart = {"fingerprint", *([DEALT] if each_its_own else [])}  # what goes with the seed
    settings: dict[str, Record] = {}
    for run in runs:
        settings[_row_key(run, apart)] = {**_fields(run), **run.options}
    names = {name for setting in settings.values() for name in setting if name not in apart}
    differing = sorted(name for name in names if _vary(settings.values(), name))
    rows: Labelled = {}
    for run in runs:
        mine = settings[_row_key(run, apart)]
        words = ", ".join(f"{name.replace('_', ' ')} {mine.get(name)}" for name in differing)
        rows.setdefault(f"{label} ({words})" if len(settings) > 1 else label, []).append(run)
    return rows


def _vary(records: Iterable[Record], name: str) -> bool:
    return len({json.dumps(each.get(name)) for each in records}) > 1


def _row_key(run: SavedRun, apart: Collection[str]) -> str:
    kept = {name: value for name, value in _fields(run).items() if name not in apart}
    return json.dumps([kept, run.variant], sort_keys=True)


def _name(folder: Path) -> str:
    """The name of a comparison's folder."""
    return folder.parent.name if folder.name == "runs" else folder.name


def _fields(run: SavedRun) -> Record:
    return {
        name: value for name, value in run.config.items() if name not in NOT_COMPARED and not isinstance(value, dict)
    }


def _key(run: SavedRun, rounds: bool, fingerprint: bool) -> str:
    apart = {"fingerprint"} if not fingerprint else set()
    apart |= {"rounds", "calibrate"} if not rounds else set()  # which methods that merge nothing have as they like
    return json.dumps({n: v for n, v in _fields(run).items() if n not in apart}, sort_keys=True)


def _split_by_seed(runs: Sequence[SavedRun]) -> set[str]:
    """Settings whose data differ between data seeds and nowhere else: a user's own images, of which the seed chooses
    the test images.
    """
    found: dict[str, set[tuple[str, int]]] = {}
    for run in runs:
        if run.config["data"] not in SOURCES:
            pair = (str(run.config["fingerprint"]), int(run.config["data_seed"]))
            found.setdefault(_key(run, False, False), set()).add(pair)
    return {
        key for key, pairs in found.items() if len(pairs) == len({f for f, _ in pairs}) == len({s for _, s in pairs})
    }


def repeats(one: Sequence[SavedRun], other: Sequence[SavedRun]) -> bool:
    """Whether these runs and those are of one setting: with every seed that both have they were given the same."""
    by_seed = {run.seed: run for run in other}
    both = [(run, by_seed[run.seed]) for run in one if run.seed in by_seed]
    return bool(both) and all(_same(*pair) for pair in both)


def _same(one: SavedRun, other: SavedRun) -> bool:
    """Machines and what is evaluated aside; a field that one of them is too old to have was as it usually is."""
    usual = {n: field.default for n, field in Experiment.model_fields.items() if n not in FOLLOWING}
    given = [{**usual, **{n: v for n, v in _fields(run).items() if v is not None}} for run in (one, other)]
    alike = all(given[0][n] == given[1][n] for n in given[0].keys() & given[1].keys() - NOT_COMPARED)
    return alike and (one.method, one.variant) == (other.method, other.variant)


def _shared(records: Sequence[Record]) -> Record:
    """The fields that have one value in all of them."""
    first, *others = records
    return {n: v for n, v in first.items() if all(other.get(n) == v for other in others)}


def _titles(groups: Sequence[Sequence[SavedRun]]) -> list[str]:
    """Each setting in words, with other fields that differ between settings and from the default; fields that vary
    within a comparison are left out.
    """
    common = [_shared([_fields(r) for r in runs if not _mergeless(r)] or [_fields(runs[0])]) for runs in groups]
    names = {n for f in common for n in f if n not in IN_TITLE}
    differing = sorted(n for n in names if len({json.dumps(f.get(n)) for f in common if n in f}) > 1)
    usual = {n: field.default for n, field in Experiment.model_fields.items() if n not in FOLLOWING}
    more = [{n: f[n] for n in differing if n in f and (n not in usual or f[n] != usual[n])} for f in common]
    return [
        ", ".join([*_words(f), *(_told(n, value) for n, value in also.items())])
        for f, also in zip(common, more, strict=True)
    ]


def _told(name: str, value: Any) -> str:
    """A field that differs; of privacy what decides it."""
    if name == "privacy" and isinstance(value, dict):
        told = {n: value.get(n) for n in ("epsilon", "noise") if value.get(n) is not None}
        return ", ".join(f"{n} {number:g}" for n, number in told.items())
    return f"{name.replace('_', ' ')} {value}"


def _words(f: Record) -> list[str]:
    words = [str(f["data"])] if "data" in f else []
    if "clients" in f:
        skew = [str(f["partition"])] if "partition" in f else []
        skew += [f"beta {f['beta']:g}"] if "beta" in f and "dirichlet" in str(f.get("partition")) else []
        skew += [f"{100 * f['sample']:g} % per round"] if f.get("sample", 1) < 1 else []
        words.append(many(f["clients"], "client") + (f" ({', '.join(skew)})" if skew else ""))
    lengths = [many(f[name], word) for name, word in (("rounds", "round"), ("epochs", "epoch")) if name in f]
    words += [" of ".join(lengths)] if lengths else []
    words += [f"lr {f['lr']:g}"] if "lr" in f else []
    return words + ([str(f["network"])] if "network" in f else [])


def many(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _group(title: str, rows: Labelled, reference: str | None) -> Group:
    made: list[Row] = []
    under_way: Labelled = {}
    for label, runs in rows.items():
        over = [run for run in runs if run.result]
        if over:
            made.append(Row.of(label, over))
        if len(over) < len(runs):
            under_way[label] = sorted((run for run in runs if not run.result), key=lambda run: run.seed)
    labels = [row.label for row in made if len(row.runs) > 1] or [row.label for row in made if row.runs]
    against = reference if reference in labels else usual_reference(labels) if labels else ""
    table = published_by_setting()
    keys = {label: setting_of(runs[0].config, int(runs[0].config["rounds"])) for label, runs in rows.items()}
    published = {label: table[key] for label, key in keys.items() if key in table}
    all_runs = [run for runs in rows.values() for run in runs]
    return Group(title, all_runs, under_way, Comparison(made, None, against), published)


def _labelled(runs: Sequence[SavedRun]) -> Labelled:
    """Rows by method; where a method has several variants, by the options in which they differ."""
    variants: dict[str, dict[str, Record]] = {}
    for run in runs:
        variants.setdefault(run.method, {})[run.variant] = run.options
    rows: Labelled = {}
    for run in runs:
        mine = list(variants[run.method].values())
        own = run.options
        differing = [name for name in own if _vary(mine, name)]
        if len(mine) > 1 and not differing:
            differing = ["plugin"]
        shown = {name: own.get(name, str(run.plugin)[:8]) for name in differing}
        words = [f"{name} {value}" for name, value in shown.items() if value is not None]
        rows.setdefault(" ".join([run.method, *words]), []).append(run)
    known = list(METHODS)
    order = sorted(rows, key=lambda label: (known.index(m) if (m := rows[label][0].method) in known else 99, label))
    return {label: rows[label] for label in order}
