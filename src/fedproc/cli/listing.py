"""`fedproc list`: methods, data sets, networks and presets."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

THINGS = ("methods", "data", "networks", "presets")


def add(commands: Any) -> None:
    parser = commands.add_parser("list")
    parser.add_argument("things", choices=THINGS)
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    from rich.table import Table  # here: help needs none of it
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    things = _summaries(parsed.things)
    groups = _families() if parsed.things == "methods" else {"": list(things)}
    for title, names in groups.items():
        if title:
            table.add_row(Text(title, style="bold"))
        for name in names:
            table.add_row(f"  {name}" if title else name, things[name])
    console.print(table, highlight=False)
    return 0


def _summaries(things: str) -> dict[str, str]:
    """What there is of a kind, each with what it is."""
    from fedproc.data import FOLDER, SOURCES
    from fedproc.methods import METHODS
    from fedproc.networks import NETWORKS
    from fedproc.presets import PRESETS

    match things:
        case "methods":
            return {name: method.summary for name, method in METHODS.items()}
        case "data":
            return {**{name: source.summary for name, source in SOURCES.items()}, "./folder": FOLDER.summary}
        case "networks":
            return NETWORKS
    return {name: summary for name, (summary, _) in PRESETS.items()}


def _families() -> dict[str, list[str]]:
    """The methods' names by family."""
    from fedproc.methods import FAMILIES, METHODS

    return {
        family: [name for name, method in METHODS.items() if method.family == family] for family in FAMILIES
    }  # fmt: skip
