"""Cells of CSV files."""

from __future__ import annotations

import pytest

from fedproc.cells import safe_cell


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+SUM(A1)", "'+SUM(A1)"),
        ("-x", "'-x"),
        ("@x", "'@x"),
        ("-1.5e3", "-1.5e3"),
        ("+2", "+2"),
        ("cat", "cat"),
        ("", ""),
        ("\x1b[2J\x1b]0;owned\x07dog\x07", "dog"),
        ("\x1b[31m=1", "'=1"),
        ("a\x00b", "ab"),
        ("\udcff.png", "\\udcff.png"),
    ],
)
def test_a_cell_is_text(text: str, cell: str) -> None:
    assert safe_cell(text) == cell
