"""Tables on the console."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from fedproc.report.tables import Table

WORD = 24  # letters of a word that are kept together
WORDS = {"", "accuracy", "verdict", "site", "method", "option", "options", "mean by value (trials)"}  # columns of text
SPARE = ("detectable", "s per run", "best")  # are left out, one after the other, of a table that is too wide


def print_table(console: Console, table: Table) -> None:
    """A table with its note below; rows without a name of their own belong to the one above. One that is too wide is
    turned where that makes it narrower, or its text is broken between words, then columns are left out, and only at
    last are words and numbers broken.
    """
    grouped = any(not row[0].text for row in table.rows)
    beside = 2 if grouped else 3  # between columns
    if not grouped and _width(table, beside, whole=True) > console.width and len(table.rows) < len(table.heads) - 1:
        table = table.turned()
    whole, left_out = _width(table, beside, whole=True) <= console.width, []
    for head in SPARE:
        if head in table.heads and _width(table, beside) > console.width:
            table = table.without(head)
            left_out.append(head)
    room = console.width - _width(table, beside)
    fits = room >= 0
    look: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0)} if grouped else {}
    made = RichTable(title=table.title, title_justify="left", **look)
    for head, cells in _columns(table):
        text, least = head in WORDS, _least(head, cells)
        width = least
        if text and fits:
            width = min(least + room, max(map(len, [head, *cells])))
            room -= width - least
        made.add_column(
            head if whole or not fits else "\n".join(wrap(head, max(least, 1))),
            justify="left" if text else "right",
            no_wrap=fits and not text,
            overflow="fold",
            width=width if text and fits else None,
        )
    for place, row in enumerate(table.rows):
        following = table.rows[place + 1] if place + 1 < len(table.rows) else None
        last = grouped and (following is None or bool(following[0].text))
        made.add_row(*(Text(cell.text) for cell in row), end_section=last)
    console.print(made)
    if table.note:
        console.print(Text(table.note))
    if left_out:
        console.print(Text(f"Left out, as the terminal is {console.width} wide: {', '.join(left_out)}."))


def _columns(table: Table) -> list[tuple[str, list[str]]]:
    return [(head, [row[at].text for row in table.rows]) for at, head in enumerate(table.heads)]


def _least(head: str, cells: list[str]) -> int:
    """How narrow a column can be: text and heads are broken between words, numbers not at all."""
    broken = [word for text in [head, *(cells if head in WORDS else ())] for word in text.split()]
    longest = max(map(len, broken), default=0)
    return min(longest, WORD) if head in WORDS else max(longest, *map(len, cells))


def _width(table: Table, beside: int, whole: bool = False) -> int:
    """Of a table as narrow as can be, or with nothing broken."""
    columns = _columns(table)
    return 1 + sum(beside + (max(map(len, [h, *cells])) if whole else _least(h, cells)) for h, cells in columns)
