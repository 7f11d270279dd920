"""The contents of the page: the paper's exhibits, tables and figures of each setting, commands and machines."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from fedproc import __version__
from fedproc.comparison.compare import Row, curves, sites_of
from fedproc.errors import InputError
from fedproc.figures.curves import draw_curves
from fedproc.figures.differences import draw_differences
from fedproc.figures.style import lines
from fedproc.paper.exhibits import EXHIBITS, REFERENCE
from fedproc.report.families import families_of, finals
from fedproc.report.gains import draw_gains
from fedproc.report.gather import Exhibited, Gathered, Group, gather, many
from fedproc.report.heatmaps import draw_classes, draw_confusions, draw_holdings
from fedproc.report.notes import hostile, private, refused
from fedproc.report.origins import all_runs, commands_and_machines, marked, of_own, of_rows, of_runs
from fedproc.report.page import Page, claim
from fedproc.report.searches import add_searches
from fedproc.report.settings import add_settings
from fedproc.report.sites import site_table
from fedproc.report.summary import (
    EXPLORATORY,
    accuracies,
    differences,
    differences_by_column,
)
from fedproc.report.tables import Grid, Number, Shown, Table
from fedproc.report.times import PARTS, draw_times
from fedproc.runs.lock import expect_folder
from fedproc.runs.saved import SavedRun
from fedproc.statistics import Paired

MOST_CLASSES = 40  # up to which a confusion matrix is readable
MOST_CLIENTS = 100
POOLED = (
    "These runs shared stacked lanes: time is divided among them by steps, so seconds do not show what a method costs; "
    "`fedproc paper time` runs each alone."
)
MOST_OPEN = 3  # settings that are shown in full; with more, details are folded


def write_report(
    folders: Sequence[Path],
    out: Path,
    reference: str | None = None,
    progress: Callable[[str], object] = str,
    columns: Sequence[str] = (),
    primary: Sequence[str] = (),
    caution: Callable[[str], object] = str,
) -> Path:
    """Write index.html, tables/ and figures/ into `out`; returns the page. `progress` gets a text for each step, and
    `caution` a sentence where runs are not of one clean commit.
    `columns` are those that the LaTeX files of accuracies have, all if none is named; `primary` names the comparisons
    whose final accuracies are the page's one primary family.
    """
    expect_folder(out)
    claim(out)
    progress("reading runs")
    gathered = gather(folders, reference)
    page = Page()
    for place, exhibit in enumerate(gathered.exhibits):
        content = exhibit.content
        name = f"{content['scale']}-{content['exhibit']}"
        name = name if name not in page.tables else f"{name}-{place}"
        known = EXHIBITS[content["exhibit"]]
        try:
            figure, grid = exhibit.folder / "figure.svg", _grid(content)
        except (TypeError, KeyError, AttributeError) as error:
            what = "expected what `fedproc paper` writes"
            raise InputError(f"{exhibit.folder / 'exhibit.json'}: {what}, got {error}") from error
        keys = lines(grid.rows) if known.measure in ("rounds", "epochs") else None
        page.section(
            name,
            f"{known.number}: {known.title} ({content['scale']} scale)",
            page.figure(name, figure, known.title, keys=keys) if figure.exists() else "",
            page.table(name, grid.table(), caption=False, texts=grid.formats()),
            *_differences(page, name, content),
            _lost(exhibit),
        )
    families = families_of(gathered.groups, primary)
    add_settings(page, gathered.groups)
    for place, group in enumerate(gathered.groups):
        progress(f"drawing {place + 1} of {len(gathered.groups)}: {group.title}")
        folded = len(gathered.groups) > MOST_OPEN
        _section(page, f"setting-{place}", group, folded, columns, families.get(place))
    add_searches(page, gathered.searches)
    if gathered.runs:
        page.section("runs", "All runs", *all_runs(page, gathered))
        page.section("origin", "Commands and machines", *commands_and_machines(gathered.runs))
    environments = [run.environment for run in gathered.runs]
    by_method: dict[str, list[SavedRun]] = {}
    for run in gathered.runs:
        by_method.setdefault(run.method, []).append(run)
    sources = " ".join(filter(None, (of_runs(environments), of_own(by_method))))
    mark = marked(environments)
    if mark:
        caution(sources)
    return page.write(out, _head(gathered) + _sources(sources, mark), progress)


def _head(gathered: Gathered) -> str:
    days = sorted({str(run.environment.get("started", ""))[:10] for run in gathered.runs} - {""})
    when = f" of {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    exhibits = len(gathered.exhibits)
    shown = f", {many(exhibits, 'table or figure')} of the paper" if exhibits == 1 else ""
    shown = f", {exhibits} tables and figures of the paper" if exhibits > 1 else shown
    return f'<p class="soft">{many(len(gathered.runs), "run")}{when}{shown}; fedproc {__version__}</p>\n'


def _sources(said: str, mark: bool) -> str:
    """Where numbers come from; what is not of one clean commit stands out."""
    return f'<p class="{"mark" if mark else "note"}">{escape(said)}</p>\n' if said else ""


def _lost(exhibit: Exhibited) -> str:
    """A note on runs of an exhibit that are missing."""
    lost = [str(path) for path in exhibit.runs if not (path / "config.json").is_file()]
    if not lost:
        return ""
    what = f"{len(lost)} of the {many(len(exhibit.runs), 'run')} behind it cannot be found any more: {lost[0]}"
    return f'<p class="note">{escape(what)}{", ..." if len(lost) > 1 else ""}</p>'


def _grid(content: dict[str, Any]) -> Grid:
    cells = content["cells"]
    numbers = {
        (cell["row"], cell["column"]): Number(**{k: v for k, v in cell.items() if k not in ("row", "column")})
        for cell in cells
    }
    return Grid(str(content.get("title", "")), numbers, str(content.get("of_one_run", "")), content.get("digits"))


def _differences(page: Page, name: str, content: dict[str, Any]) -> list[str]:
    """An exhibit's paired differences, where it was made of several seeds."""
    found: dict[str, dict[str, Paired]] = {}
    for one in content.get("differences", []):
        numbers = {field: one[field] for field in Paired.__dataclass_fields__ if field in one}
        found.setdefault(one["column"], {})[one["row"]] = Paired(**{**numbers, "seeds": tuple(one["seeds"])})
    table = replace(differences_by_column(found, REFERENCE), note=EXPLORATORY) if found else None
    return [page.table(f"{name}-differences", table)] if table is not None else []


def _section(
    page: Page,
    name: str,
    group: Group,
    folded: bool,
    columns: Sequence[str],
    primary: Mapping[str, Paired] | None,
) -> None:
    comparison = group.comparison
    parts = _sites(page, name, group)
    if comparison.rows:
        table = accuracies(comparison, group.published, everything=True)
        made_with = {row.label: [run.environment for run in _saved(row)] for row in comparison.rows}
        pooled = POOLED if group.pooled else ""
        about = " ".join(filter(None, (table.note, pooled)))
        own = of_own({row.label: _saved(row) for row in comparison.rows})
        sources = " ".join(filter(None, (of_rows(made_with), own)))
        named = replace(table, note=" ".join(filter(None, (table.note, pooled, sources))))
        texts = named.formats() | ({"tex": named.chosen(columns).latex()} if columns else {})
        parts.append(page.table(f"{name}-accuracy", replace(table, note=about), texts=texts))
        parts.append(_sources(sources, marked([one for some in made_with.values() for one in some])))
    parts += private(group) + refused(group) + hostile(group)
    drawn = {label: runs for label, runs in curves(comparison).items() if runs}
    ends = _ends(drawn)
    for label, runs in group.under_way.items():
        if any(run.metrics for run in runs):
            drawn[f"{label} (under way)"] = [run.metrics for run in runs if run.metrics]
    if drawn:
        parts += [
            "<h3>Learning curves</h3>",
            page.figure(f"{name}-curves", draw_curves(drawn), "Learning curves", ends, lines(drawn)),
        ]
    if shown := primary or finals(group):
        drawn_differences = draw_differences(shown, comparison.reference)
        table = differences(comparison, primary, declared=primary is not None)
        parts += ["<h3>Differences</h3>", page.figure(f"{name}-seeds", drawn_differences, "Differences by seed")]
        parts.append(page.table(f"{name}-differences", table))
    more = [*_classes(page, name, group), *_partition(page, name, group), *_time(page, name, group)]
    if folded and more:
        more = ["<details><summary>classes, partition, time</summary>", *more, "</details>"]
    page.section(name, group.title, *parts, *more)


def _sites(page: Page, name: str, group: Group) -> list[str]:
    """What each real site gained, which its people ask first."""
    rows = sites_of(group.comparison)
    if not rows:
        return []
    parts = ["<h3>Did it help each site?</h3>", page.table(f"{name}-sites", site_table(rows))]
    if (drawn := draw_gains(rows)) is not None:
        parts.append(page.figure(f"{name}-gains", drawn, "Gain of each site over training alone"))
    return parts


def _ends(rows: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> str:
    """Which curves are shorter than the longest."""
    last = {label: max((r["round"] for run in runs for r in run), default=0) for label, runs in rows.items()}
    early = [f"{label} after round {end}" for label, end in last.items() if end < max(last.values())]
    return f"Ended earlier: {', '.join(early)}." if early else ""


def _saved(row: Row) -> list[SavedRun]:
    return [run for run in row.runs if isinstance(run, SavedRun)]


def _first(group: Group, fits: Callable[[SavedRun], bool] = lambda run: True) -> dict[str, SavedRun]:
    """The first finished run of each row that fits."""
    found: dict[str, SavedRun] = {}
    for row in group.comparison.rows:
        for run in _saved(row):
            if fits(run):
                found.setdefault(row.label, run)
    return found


def _classes(page: Page, name: str, group: Group) -> list[str]:
    firsts = _first(group)
    found = {label: _class_accuracy(run) for label, run in firsts.items()}
    known = {label: values for label, values in found.items() if values}
    if not known:
        return []
    count = len(next(iter(known.values())))
    names = next((run.partition[0] for run in firsts.values() if run.partition), [str(k) for k in range(count)])
    of = {f"seed {firsts[label].seed}, {firsts[label].held_out} images" for label in known}
    seeds = " and ".join(sorted(of))
    parts = [
        "<h3>Classes</h3>",
        page.figure(
            f"{name}-classes", draw_classes(known, names), "Accuracy of each class", f"Accuracy in per cent, {seeds}."
        ),
    ]
    holders = _first(group, lambda run: run.confusion is not None)
    confusions = {
        label if run.seed == firsts[label].seed else f"{label}, seed {run.seed}": run.confusion
        for label, run in holders.items()
        if run.confusion is not None
    }
    if confusions and count <= MOST_CLASSES:
        drawn = draw_confusions(confusions, names)
        note = f"Per cent of each true class by predicted class, {seeds} unless another seed is named."
        parts += ["<h3>Confusions</h3>", page.figure(f"{name}-confusions", drawn, "Confusion matrices", note)]
    return parts


def _class_accuracy(run: SavedRun) -> list[float]:
    names = ("class_accuracy", "val_class_accuracy")
    last: dict[str, Any] = next((r for r in reversed(run.metrics) if any(name in r for name in names)), {})
    values: list[float | None] = last.get("class_accuracy", last.get("val_class_accuracy", []))
    return [float("nan") if value is None else value for value in values]


def _partition(page: Page, name: str, group: Group) -> list[str]:
    """Of the run with the lowest seed among those with several clients."""
    for run in sorted(group.runs, key=lambda run: run.seed):
        private = run.config.get("privacy") is not None  # the figure would tell what clients have
        if run.partition is not None and not private and 1 < len(run.partition[1]) <= MOST_CLIENTS:
            names, counts = run.partition
            drawn = draw_holdings(counts, names, f"data seed {run.config['data_seed']}", run.client_names)
            title = "Partition"
            note = "Training samples per client and class."
            return [f"<h3>{title}</h3>", page.figure(f"{name}-partition", drawn, title, note)]
    return []


def _time(page: Page, name: str, group: Group) -> list[str]:
    """Seconds per round: medians over the rounds with such work, which leaves out compilation in the first."""
    seconds, rows = {}, []
    for row in group.comparison.rows:
        runs = [run for run in row.runs if run.metrics]
        if not runs:
            continue
        parts = {p: [r.get("seconds", {}).get(p, 0.0) for run in runs for r in run.metrics] for p in PARTS}
        spent = {p: statistics.median([v for v in values if v] or [0.0]) for p, values in parts.items()}
        seconds[row.label] = spent
        whole, rate, up = (row.spread(key) for key in ("seconds", "samples_per_second", "bytes_up"))
        numbers = [Shown(f"{value:.4g}", value) for value in spent.values()]
        for spread, scale, shape in ((whole, 1, ".1f"), (rate, 1, ",.0f"), (up, 1e6, ",.1f")):
            numbers.append(Shown("-") if spread is None else Shown(f"{spread[0] / scale:{shape}}", spread[0] / scale))
        rows.append([Shown(row.label), *numbers])
    if not rows:
        return []
    heads = ["", *PARTS, "s per run", "samples per second", "MB uploaded per run"]
    note = "Medians over the rounds with such work." + (f" {POOLED}" if group.pooled else "")
    table = Table("seconds per round by phase, and totals per run", heads, rows, note)
    drawn = page.figure(f"{name}-time", draw_times(seconds), "Seconds per round")
    return ["<h3>Time and throughput</h3>", drawn, page.table(f"{name}-time", table)]
