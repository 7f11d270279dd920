"""Texts of strangers in files of ours: cells of CSV files that a spreadsheet takes for what they are, neither a formula
nor codes of a terminal, and text that a page or a figure can hold.
"""

from __future__ import annotations

import re

SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]?")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
UNSHOWN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")  # most not in XML either
FORMULA = tuple("=+-@\t\r")


def safe_cell(text: str) -> str:
    """A text as a cell: escape sequences are left out, and what would begin a formula has a ' before it. Numbers are
    written as they are, and bytes of a name that are not UTF-8 as \\udcNN.
    """
    plain = CONTROL.sub("", SEQUENCE.sub("", text)).encode("utf-8", "backslashreplace").decode("utf-8")
    return f"'{plain}" if plain.startswith(FORMULA) and not _number(plain) else plain


def legible(text: str) -> str:
    """A text with a sign in place of each control character, and of what XML cannot hold."""
    return UNSHOWN.sub("\ufffd", text)


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
