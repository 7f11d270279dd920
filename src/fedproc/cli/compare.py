"""`fedproc compare`: methods and variants over seeds, a table and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fedproc.cli.display import Display
from fedproc.cli.parser import Parser, add_experiment_flags
from fedproc.cli.run import add_out, gathered
from fedproc.comparison import Comparison, compare, read_toml
from fedproc.errors import InputError

ONE_SEED = "one seed says nothing of differences: take more --seeds"

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
    group.add_argument(
        "--reference", metavar="LABEL", help="the row that differences are to; default: fedavg, or the first"
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
    reference = parsed.reference or values.pop("reference", None)
    how = {"variants": variants, "reference": reference, "fresh": parsed.fresh, "watcher": Display(console)}
    done = compare(methods, seeds, parsed.out, **how, **values)
    console.print(table(done))
    if len(done.rows) > 1:
        console.print(differences(done) if len(seeds) > 1 else ONE_SEED)
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


def differences(comparison: Comparison) -> Table:
    """Each row's paired difference to the reference, in points, with its interval and what it is worth."""
    seeds = {len(one.seeds) for one in comparison.paired(comparison.prefix + "final_accuracy").values()}
    over = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(*seeds)
    made = Table(
        title=f"difference to {comparison.reference} in points, paired over {over} seeds; p corrected by Holm; "
        "`seen from`: what as many seeds would have shown",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for name in ("", "accuracy", "difference", "95 % interval", "p", "seen from", "verdict"):
        right = name not in ("", "accuracy", "verdict")
        made.add_column(name, justify="right" if right else "left", no_wrap=right)
    kinds = {
        "final_accuracy": "final",
        "last10_accuracy": "last 10",
        "final_prototype_accuracy": "prototype, final",
        "last10_prototype_accuracy": "prototype, last 10",
    }
    found = {name: comparison.paired(comparison.prefix + name) for name in kinds}
    for row in comparison.rows:
        for place, (name, words) in enumerate(kinds.items()):
            if row.label not in found[name]:
                continue
            one = found[name][row.label]
            numbers = (f"{100 * one.difference:+.2f}", f"{100 * one.low:+.2f} to {100 * one.high:+.2f}")
            made.add_row(
                "" if place else row.label,
                words,
                *numbers,
                f"{one.corrected:.3f}" if one.corrected >= 0.001 else "< 0.001",
                f"{100 * one.detectable:.2f}",
                one.verdict,
                end_section=place == len(kinds) - 1,
            )
    return made


def _cell(spread: tuple[float, float | None] | None, scale: float, digits: int = 2) -> str:
    if spread is None:
        return "-"
    mean, deviation = spread
    tail = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    return f"{scale * mean:.{digits}f}{tail}"
