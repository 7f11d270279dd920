"""`fedproc compare`: methods and variants over seeds, a table and a figure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from fedproc.cli.parser import add_experiment_flags
from fedproc.cli.run import add_out, beside, gathered, watching, write_sites
from fedproc.cli.sharing import add_workers, whole_numbers
from fedproc.cli.strict import Parser
from fedproc.cli.tables import print_table
from fedproc.comparison.compare import Comparison, compare, sites_of
from fedproc.comparison.overrides import read_variants
from fedproc.errors import InputError, RunError
from fedproc.methods.method import Method
from fedproc.methods.plugin import all_methods
from fedproc.methods.robust import ROBUST
from fedproc.report.summary import accuracies, differences
from fedproc.runs.keeper import Fresh
from fedproc.runs.result import refusals_in_words
from fedproc.runs.saved import read_environment
from fedproc.simulation.drive import Run
from fedproc.simulation.workers.choice import parsed as parsed_workers
from fedproc.watchers.console import Display
from fedproc.watchers.trackers import finish

FRESH: dict[str | None, Fresh] = {None: False, "unfinished": "unfinished", "all": True}
ONE_SEED = "one seed is too few for differences: take more --seeds"

EPILOG = """\
--variants takes a TOML file of named overrides, each a row in addition to the --methods you name:

    [sharp]
    method = "fedproc"
    fedproc.tau = 0.2

Run again with more seeds or methods, the command continues the folder and includes the runs that are in it.
"""


def add(commands: Any, methods: Mapping[str, type[Method]]) -> None:
    usage = "fedproc compare [--methods M ...] [--seeds N ...] [--variants FILE] [--out FOLDER] [--option VALUE ...]"
    parser: Parser = commands.add_parser("compare", epilog=EPILOG, usage=usage)
    group = parser.add_argument_group("what to compare")
    group.add_argument("--methods", nargs="+", metavar="METHOD", help="default: fedavg fedproc; none with --variants")
    group.add_argument("--seeds", nargs="+", metavar="N", help="default: 0 1 2")
    group.add_argument(
        "--variants",
        type=Path,
        metavar="FILE",
        help="TOML file of named overrides, each a row in addition to --methods",
    )
    group.add_argument(
        "--reference", metavar="LABEL", help="the row that others are compared with; default: fedavg, or the first"
    )
    add_workers(group)
    add_out(parser, "runs/cmp")
    words = "start over the runs in --out that are not finished with these settings; all: those as well"
    parser.add_argument("--fresh", nargs="?", const="unfinished", choices=["unfinished", "all"], help=words)
    add_experiment_flags(parser, without=("method", "seed"), methods=methods)
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    wanted = beside(parsed)
    values = gathered(parsed)
    listed = _list("seeds", parsed.seeds, values.pop("seeds", ["0", "1", "2"]))
    seeds = whole_numbers("--seeds", listed)
    values.pop("seed", None)
    values.pop("method", None)
    tables = {*all_methods(parsed.plugin or ()), *ROBUST}
    variants = read_variants(parsed.variants, tables) if parsed.variants else {}
    methods = _list("methods", parsed.methods, values.pop("methods", [] if variants else ["fedavg", "fedproc"]))
    below = values.pop("reference", None)
    reference = below if parsed.reference is None else parsed.reference
    workers = parsed_workers(parsed.workers, parsed.cluster, parsed.shared_lock)
    watcher, tracking = watching(parsed, console)
    how = {"variants": variants, "reference": reference, "fresh": FRESH[parsed.fresh], "watcher": watcher}
    how |= {"interrupt": parsed.interrupt, "workers": workers}
    how |= {"beside": wanted, "beside_watcher": Display(console)}
    done = compare(methods, seeds, parsed.out, **how, **values)
    finish(tracking, (run for row in done.rows for run in row.runs if isinstance(run, Run)))
    print_table(console, accuracies(done))
    if len(done.rows) > 1:
        if done.paired(f"{done.prefix}final_accuracy"):
            print_table(console, differences(done))
        elif any(len(row.runs) > 1 for row in done.rows):
            why = f"no row has two finished seeds in common with {done.reference}"
            console.print(f"{why}: there are no differences to show; --reference takes another row", highlight=False)
        else:
            console.print(ONE_SEED)
    _say_sources(done, console)
    if sites := sites_of(done):
        write_sites(parsed.out, sites, console)
    for each in (run for row in done.rows for run in row.runs if isinstance(run, Run)):
        refused = refusals_in_words(each.metrics)
        for note in (*each.notes, *([refused] if refused else [])):
            console.print(f"{each.path}: {note}", highlight=False)
    drawn = ", curves.png and differences.png" if (parsed.out / "differences.png").exists() else " and curves.png"
    console.print(f"runs, comparison.json{drawn} are in {parsed.out}", highlight=False)
    if any(row.failed for row in done.rows):
        raise _failure(done)
    return 0


def _failure(done: Comparison) -> RunError:
    """Which runs failed. Why stands in their folders; of those that have none, it is said here."""
    failed = [(row.label, run) for row in done.rows for run in row.ended if run.seed in row.failed]
    named = [f"{label}, seed {run.seed}" for label, run in failed]
    homeless = dict.fromkeys(str(run.result["reason"]) for _, run in failed if run.path is None)
    where = ["the reason is in each run's result.json"] if any(run.path for _, run in failed) else []
    error = RunError("; ".join([f"failed: {'; '.join(named)}", *homeless, *where]))
    error.trace = "\n".join(dict.fromkeys(run.trace for _, run in failed if isinstance(run, Run) and run.trace))
    return error


def _say_sources(done: Comparison, console: Console) -> None:
    """Runs of different sources are not told apart by their numbers."""
    from fedproc.report.origins import of_rows, several  # matplotlib takes a while to import

    rows = {row.label: [read_environment(run.path) for run in row.runs if run.path] for row in done.rows}
    if several([each for some in rows.values() for each in some]):
        console.print(f"runs of different sources stand side by side. {of_rows(rows)}", highlight=False, markup=False)


def _list(name: str, typed: list[str] | None, below: Any) -> list[str]:
    """What was typed, or what the file or the default says."""
    found = below if typed is None else typed
    if not isinstance(found, list):
        raise InputError(f"--{name} {found}: expected a list")
    return [str(each) for each in found]
