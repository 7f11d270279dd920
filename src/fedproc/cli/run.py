"""`fedproc run`: one experiment in one folder."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedproc.beside import FINE_TUNING_EPOCHS, Beside
from fedproc.cli.parser import add_experiment_flags, given
from fedproc.cli.strict import Parser
from fedproc.cli.tables import print_table
from fedproc.comparison.beside import asked_beside, has_sites, run_beside
from fedproc.comparison.overrides import merged, read_toml
from fedproc.comparison.sites import SiteRow, compared, site_rows
from fedproc.effect import expect_effect
from fedproc.errors import Diverged, Failed, InputError, suggestion
from fedproc.experiment import Experiment
from fedproc.files import write_file
from fedproc.methods.method import Method
from fedproc.methods.plugin import all_methods
from fedproc.methods.robust import ROBUST
from fedproc.report.sites import site_table
from fedproc.runs.result import promise_kept, refusals_in_words
from fedproc.simulation.drive import Run, run
from fedproc.simulation.watching import Everybody
from fedproc.watchers.console import Display
from fedproc.watchers.tracker import Tracker
from fedproc.watchers.trackers import TRACKERS, finish, trackers

LISTS = ("methods", "seeds", "reference")  # of a comparison
EPILOG = """\
The same command on the same folder continues an interrupted run, and prints the result of a finished one.
Precedence: flag, --config, --preset, data set.
"""


def add(commands: Any, methods: Mapping[str, type[Method]]) -> None:
    usage = "fedproc run [--out FOLDER] [--option VALUE ...]"
    parser: Parser = commands.add_parser("run", epilog=EPILOG, usage=usage)
    add_out(parser, "runs/demo")
    parser.add_argument("--fresh", action="store_true", help="start over instead of continuing what is in --out")
    add_experiment_flags(parser, methods=methods)
    parser.set_defaults(command=command)


def add_out(parser: Parser, default: str) -> None:
    group = parser.add_argument_group("run folder")
    group.add_argument("--out", type=Path, default=Path(default), help=f"folder of the run; default: {default}")
    group.add_argument(
        "--no-alone", action="store_true", help="where clients are real sites: do not train each alone for comparison"
    )
    group.add_argument(
        "--fine-tune", metavar="EPOCHS", type=int,
        help="where clients are real sites: epochs of each from the trained model on, for comparison; "
        f"default: {FINE_TUNING_EPOCHS}, 0: none",
    )  # fmt: skip
    words = f"also write the numbers for a tracker into the folder, offline: {', '.join(TRACKERS)}; can be given again"
    group.add_argument("--log", action="append", default=[], metavar="TRACKER", help=words)
    group.add_argument("--config", type=Path, help="TOML file with the same names as the flags")


def watching(parsed: argparse.Namespace, console: Console, reasons: bool = True) -> tuple[Everybody, list[Tracker]]:
    """The display with the trackers that were requested, and these. `reasons`: whether it says why runs failed."""
    tracking = trackers(parsed.log, parsed.out)
    return Everybody([Display(console, reasons=reasons), *tracking]), tracking


def beside(parsed: argparse.Namespace) -> Beside:
    return Beside.asked(False if parsed.no_alone else None, parsed.fine_tune)


def gathered(parsed: argparse.Namespace) -> dict[str, Any]:
    """The file's values, overridden by the flags."""
    below = read_toml(parsed.config, "--config") if parsed.config else {}
    for name in ("out", "fresh", "config", "variants", "plugin", "log", "workers"):
        if name in below:
            raise InputError(f"--config {parsed.config}: {name} belongs on the command line")
    tables = (name.replace("-", "_") for name in (*all_methods(parsed.plugin or ()), *ROBUST))
    known = [*Experiment.model_fields, *tables, *LISTS]
    for name in (name for name in below if name.partition(".")[0].replace("-", "_") not in known):
        hint = suggestion(name, known, "`fedproc run --help` lists them all")
        raise InputError(f"--config {parsed.config}: {name}: no such option; {hint}")
    return merged(below, given(parsed))


def command(parsed: argparse.Namespace, console: Console) -> int:
    wanted = beside(parsed)
    values = gathered(parsed)
    experiment = Experiment(**values)
    expect_effect(values, [experiment])
    wanted.expect_sites([experiment])
    watcher, tracking = watching(parsed, console, reasons=False)  # the end of the command says it
    done = run(experiment, parsed.out, fresh=parsed.fresh, watcher=watcher, interrupt=parsed.interrupt)
    finish(tracking, [done])
    if done.result["status"] != "finished":
        at, why = done.result["round"], done.result["reason"]
        raise Diverged(at, why) if done.result["status"] == "diverged" else Failed(at, why, done.trace)
    _show(done, parsed.out, console)
    if asked := asked_beside([done], wanted):
        console.print("for comparison: each site by itself (--no-alone and --fine-tune 0 leave it out)")
        how = {"fresh": parsed.fresh, "watcher": Display(console), "interrupt": parsed.interrupt}
        run_beside(asked, parsed.out, **how)
    rows = site_rows([compared(experiment.method, {done.seed: parsed.out}, {})]) if has_sites(experiment) else []
    if rows and experiment.method_type.federated:
        write_sites(parsed.out, rows, console)
    console.print(f"written to {parsed.out}", highlight=False)
    return 0


def write_sites(out: Path, rows: Sequence[SiteRow], console: Console) -> None:
    """What each site has: as sites.csv, and on the console."""
    table = site_table(rows)
    write_file(out / "sites.csv", partial(Path.write_text, data=table.csv(), encoding="utf-8"))
    print_table(console, table)


def _show(done: Run, out: Path, console: Console) -> None:
    """The headline numbers."""
    experiment = done.experiment
    table = Table(title=f"{experiment.method} on {experiment.data}", title_justify="left", show_header=False)
    last = done.metrics[-1]
    models = last.get("final_models") or last.get("val_final_models") or {}
    names = {"final_accuracy", "best_accuracy", "last10_accuracy", "final_prototype_accuracy", "final_own_accuracy"}
    names |= {"test_accuracy", "test_prototype_accuracy"}  # of the kept model
    names |= {f"final_{name}_accuracy" for name in models}
    for name, value in done.result.items():
        if name.removeprefix("val_") in names:
            table.add_row(name.replace("_", " "), f"{100 * value:.2f} %")
    if "kept_round" in done.result:
        table.add_row("kept round", f"{done.result['kept_round']}")
    if refused := refusals_in_words(done.metrics):
        table.add_row("refused answers", refused)
    table.add_row("rounds", f"{done.result['rounds']}")
    if kept := promise_kept(done.result):
        table.add_row("privacy", kept.removeprefix(", "))
    table.add_row("seconds, without training" if kept else "seconds", f"{done.result['seconds']:.1f}")
    if done.result["samples_per_second"]:
        table.add_row("samples per second", f"{done.result['samples_per_second']:,.0f}")
    console.print(table)
    for note in done.notes:
        console.print(note, highlight=False)
