"""Tables on the console."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedproc.report.tables import Table

WORD = 24  # letters of a word that are kept together


def print_table(console: Console, table: Table) -> None:
    """A table with its note below; rows without a name of their own belong to the one above. One that is too wide is
    turned where that makes it narrower, and else its cells are broken.
    """
    words = {"", "accuracy", "verdict", "site", "method", "option", "options", "mean by value (trials)"}
    grouped = any(not row[0].text for row in table.rows)
    if not grouped and not _fits(table, console) and len(table.rows) < len(table.heads) - 1:
        table = table.turned()
    fits = (grouped and "verdict" in table.heads) or _fits(table, console, 1 if grouped else 3)
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)} if grouped else {}
    made = RichTable(title=table.title, title_justify="left", **look)
    for head, *cells in zip(table.heads, *([cell.text for cell in row] for row in table.rows), strict=True):
        longest = max((len(word) for text in cells for word in text.split()), default=0)
        made.add_column(
            head,
            justify="left" if head in words else "right",
            no_wrap=fits and head not in words,
            overflow="fold",
            min_width=min(longest, WORD) if head in words else None,  # names are broken between words
        )
    for place, row in enumerate(table.rows):
        following = table.rows[place + 1] if place + 1 < len(table.rows) else None
        last = grouped and (following is None or bool(following[0].text))
        made.add_row(*(Text(cell.text) for cell in row), end_section=last)
    console.print(made)
    if table.note:
        console.print(Text(table.note))


def _fits(table: Table, console: Console, beside: int = 3) -> bool:
    columns = zip(table.heads, *([cell.text for cell in row] for row in table.rows), strict=True)
    return sum(max(map(len, column)) + beside for column in columns) < console.width
