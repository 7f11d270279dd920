"""`fedproc list`: methods, data sets, networks and presets."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedproc.data import FOLDER, SOURCES
from fedproc.methods import FAMILIES, METHODS
from fedproc.networks import NETWORKS
from fedproc.presets import PRESETS

THINGS: dict[str, dict[str, str]] = {
    "methods": {name: method.summary for name, method in METHODS.items()},
    "data": {**{name: source.summary for name, source in SOURCES.items()}, "./folder": FOLDER.summary},
    "networks": NETWORKS,
    "presets": {name: summary for name, (summary, _) in PRESETS.items()},
}


def add(commands: Any) -> None:
    parser = commands.add_parser("list")
    parser.add_argument("things", choices=THINGS)
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    table = Table.grid(padding=(0, 2))
    things = THINGS[parsed.things]
    groups = _families() if parsed.things == "methods" else {"": list(things)}
    for title, names in groups.items():
        if title:
            table.add_row(Text(title, style="bold"))
        for name in names:
            table.add_row(f"  {name}" if title else name, things[name])
    console.print(table, highlight=False)
    return 0


def _families() -> dict[str, list[str]]:
    """The methods' names by family."""
    return {
        family: [name for name, method in METHODS.items() if method.family == family] for family in FAMILIES
    }  # fmt: skip
