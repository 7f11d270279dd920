"""Cells of CSV files that a spreadsheet takes for what they are: text, neither a formula nor codes of a terminal."""

from __future__ import annotations

import re

SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]?")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
FORMULA = tuple("=+-@\t\r")


def safe_cell(text: str) -> str:
    """A text as a cell: escape sequences are left out, and what would begin a formula has a ' before it. Numbers are
    written as they are, and bytes of a name that are not UTF-8 as \\udcNN.
    """
    plain = CONTROL.sub("", SEQUENCE.sub("", text)).encode("utf-8", "backslashreplace").decode("utf-8")
    return f"'{plain}" if plain.startswith(FORMULA) and not _number(plain) else plain


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
