"""What `fedproc sweep` found, on the page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from fedproc.errors import InputError
from fedproc.files import read_text
from fedproc.report.page import Page
from fedproc.report.tables import Shown, Table

TABLES = {"ranking": "trials of each row, the best first; validation accuracy, %", "options": "which option mattered"}


def add_searches(page: Page, folders: Sequence[Path]) -> None:
    """A section for each search that came to its end, with its tables and its picture."""
    for place, folder in enumerate(folders):
        if not (folder / "ranking.csv").is_file():
            continue
        name, parts = f"search-{place}", []
        for which, title in TABLES.items():
            parts.append(page.table(f"{name}-{which}", _table(folder / f"{which}.csv", title)))
            if which == "ranking" and (folder / "options.svg").is_file():
                parts.append(page.figure(f"{name}-options", folder / "options.svg", "Trials by option"))
        page.section(name, f"Search: {folder.name}", *parts)


def _table(path: Path, title: str) -> Table:
    try:
        heads, *rows = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
        if not heads or any(len(row) != len(heads) for row in rows):
            raise ValueError("lines of different lengths")
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path}: expected what `fedproc sweep` wrote, got something else: {error}") from error
    return Table(title, heads, [[_cell(text) for text in row] for row in rows])


def _cell(text: str) -> Shown:
    try:
        return Shown(f"{float(text):.4g}", float(text))
    except ValueError:
        return Shown(text)
