"""`fedproc compare`: methods and variants over seeds, a table and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedproc.cli.display import Display
from fedproc.cli.parser import Parser, add_experiment_flags
from fedproc.cli.run import add_out, gathered
from fedproc.comparison import Comparison, compare, read_toml
from fedproc.errors import InputError

EPILOG = """\
--variants takes a TOML file of named overrides, each a row of its own beside the methods:

    [sharp]
    method = "fedproc"
    fedproc.tau = 0.2

Asked again with more seeds or methods, the command continues the folder.
"""


def add(commands: Any) -> None:
    usage = "fedproc compare [--methods M ...] [--seeds N ...] [--variants FILE] [--out FOLDER] [--option VALUE ...]"
    words = "methods side by side over several seeds"
    parser: Parser = commands.add_parser("compare", help=words, epilog=EPILOG, usage=usage)
    group = parser.add_argument_group("what to compare")
    group.add_argument("--methods", nargs="+", metavar="METHOD", help="default: fedavg fedproc")
    group.add_argument("--seeds", nargs="+", metavar="N", help="default: 0 1 2")
    group.add_argument(
        "--variants", type=Path, metavar="FILE", help="TOML file of named overrides, each a row beside the methods"
    )
    add_out(parser, "runs/cmp")
    add_experiment_flags(parser, without=("method", "seed"))
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    values = gathered(parsed)
    listed = _list("seeds", parsed.seeds, values.pop("seeds", ["0", "1", "2"]))
    try:
        seeds = [int(seed) for seed in listed]
    except ValueError:
        raise InputError(f"--seeds {' '.join(listed)}: expected whole numbers") from None
    values.pop("seed", None)
    values.pop("method", None)
    variants = read_variants(parsed.variants) if parsed.variants else {}
    methods = _list("methods", parsed.methods, values.pop("methods", [] if variants else ["fedavg", "fedproc"]))
    done = compare(
        methods, seeds, parsed.out, variants=variants, fresh=parsed.fresh, watcher=Display(console), **values
    )
    console.print(table(done))
    console.print(f"runs, comparison.json and curves.png are in {parsed.out}", highlight=False)
    return 0


def _list(name: str, typed: list[str] | None, below: Any) -> list[str]:
    """What was typed, or what the file or the default says."""
    found = below if typed is None else typed
    if not isinstance(found, list):
        raise InputError(f"--{name} {found}: expected a list")
    return [str(each) for each in found]


def read_variants(name: Path) -> dict[str, Any]:
    found = read_toml(name, "--variants")
    for label, values in found.items():
        if not isinstance(values, dict):
            raise InputError(f"--variants {name}: {label} = {values}: expected a table [{label}] of overrides")
    return found


def table(comparison: Comparison) -> Table:
    """Mean and sample deviation over seeds, in per cent; the final round first."""
    prefix = comparison.prefix
    title = "accuracy, %: mean ± sample deviation over seeds" + (" (validation)" if prefix else "")
    made = Table(title=title, title_justify="left")
    for name in ("", "seeds", "final", "last 10", "best", "nearest prototype", "s a run"):
        made.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for row in comparison.rows:
        numbers = ("final_accuracy", "last10_accuracy", "best_accuracy", "final_prototype_accuracy")
        cells = [_cell(row.spread(prefix + name), 100.0) for name in numbers]
        diverged = f" ({len(row.diverged)} diverged)" if row.diverged else ""
        made.add_row(row.label, f"{len(row.runs)}{diverged}", *cells, _cell(row.spread("seconds"), 1.0, 1))
    return made


def _cell(spread: tuple[float, float | None] | None, scale: float, digits: int = 2) -> str:
    if spread is None:
        return "-"
    mean, deviation = spread
    tail = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * mean:.{digits}f}{tail}"
