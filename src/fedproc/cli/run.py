"""`fedproc run`: one experiment in one folder."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedproc.cli.display import Display
from fedproc.cli.parser import Parser, add_experiment_flags, given
from fedproc.comparison.compare import merged, read_toml
from fedproc.errors import Diverged, Failed, InputError, suggestion
from fedproc.experiment import Experiment
from fedproc.methods.method import Method
from fedproc.methods.plugin import all_methods
from fedproc.runs.result import refusals_in_words
from fedproc.simulation.drive import run
from fedproc.watchers.tensorboard import TensorBoard

LISTS = ("methods", "seeds", "reference")  # of a comparison
EPILOG = """\
The same command on the same folder continues an interrupted run, and prints the result of a finished one.
Precedence: flag, --config, --preset, data set.
"""


def add(commands: Any, methods: Mapping[str, type[Method]]) -> None:
    usage = "fedproc run [--out FOLDER] [--option VALUE ...]"
    parser: Parser = commands.add_parser("run", help="run one experiment, or continue it", epilog=EPILOG, usage=usage)
    add_out(parser, "runs/demo")
    add_experiment_flags(parser, methods=methods)
    parser.set_defaults(command=command)


def add_out(parser: Parser, default: str) -> None:
    group = parser.add_argument_group("run folder")
    group.add_argument("--out", type=Path, default=Path(default), help=f"folder of the run; default: {default}")
    group.add_argument("--fresh", action="store_true", help="start over instead of continuing what is in --out")
    group.add_argument("--log", choices=["tensorboard"], help="also write tensorboard/ in the run folder")
    group.add_argument("--config", type=Path, help="TOML file with the same names as the flags")


def watching(parsed: argparse.Namespace, console: Console) -> Display | TensorBoard:
    """The display, and TensorBoard if requested."""
    display = Display(console)
    return TensorBoard(display) if parsed.log == "tensorboard" else display


def gathered(parsed: argparse.Namespace) -> dict[str, Any]:
    """The file's values, overridden by the flags."""
    below = read_toml(parsed.config, "--config") if parsed.config else {}
    for name in ("out", "fresh", "config", "variants", "plugin", "log", "workers"):
        if name in below:
            raise InputError(f"--config {parsed.config}: {name} belongs on the command line")
    known = [*Experiment.model_fields, *(name.replace("-", "_") for name in all_methods(parsed.plugin or ())), *LISTS]
    for name in (name for name in below if name.replace("-", "_") not in known):
        hint = suggestion(name, known, "`fedproc run --help` lists them all")
        raise InputError(f"--config {parsed.config}: {name}: no such option; {hint}")
    return merged(below, given(parsed))


def command(parsed: argparse.Namespace, console: Console) -> int:
    experiment = Experiment(**gathered(parsed))
    watcher = watching(parsed, console)
    done = run(experiment, parsed.out, fresh=parsed.fresh, watcher=watcher, interrupt=parsed.interrupt)
    if isinstance(watcher, TensorBoard):
        watcher.finish(done)
    if done.result["status"] != "finished":
        kind = Diverged if done.result["status"] == "diverged" else Failed
        raise kind(done.result["round"], done.result["reason"])
    table = Table(title=f"{experiment.method} on {experiment.data}", title_justify="left", show_header=False)
    last = done.metrics[-1]
    models = last.get("final_models") or last.get("val_final_models") or {}
    names = {"final_accuracy", "best_accuracy", "last10_accuracy", "final_prototype_accuracy", "final_own_accuracy"}
    names |= {f"final_{name}_accuracy" for name in models}
    for name, value in done.result.items():
        if name.removeprefix("val_") in names:
            table.add_row(name.replace("_", " "), f"{100 * value:.2f} %")
    if refused := refusals_in_words(done.metrics):
        table.add_row("refused answers", refused)
    table.add_row("rounds", f"{done.result['rounds']}")
    table.add_row("seconds", f"{done.result['seconds']:.1f}")
    table.add_row("samples per second", f"{done.result['samples_per_second']:,.0f}")
    console.print(table)
    for note in done.notes:
        console.print(note, highlight=False)
    console.print(f"written to {parsed.out}", highlight=False)
    return 0
