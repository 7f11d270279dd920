"""Tables on a terminal of any width show what they are for."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedproc.cli.tables import print_table
from fedproc.report.tables import Shown, Table

HEADS = ["", "accuracy", "difference", "95 % interval", "p", "detectable", "verdict"]
CELLS = ["+1.17", "+0.53 to +1.81", "0.028", "1.35 (0.81 to 3.89)", "no difference seen"]
DIFFERENCES = Table(
    "difference to fedavg in points",
    HEADS,
    [
        [Shown(text) for text in row]
        for row in (["fedproc", "final", *CELLS], ["", "prototype, last 10", *CELLS], ["moon", "final", *CELLS])
    ],
)


def printed(table: Table, width: int) -> list[str]:
    stream = io.StringIO()
    print_table(Console(width=width, file=stream), table)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return lines


def test_all_of_it_where_there_is_room() -> None:
    lines = printed(DIFFERENCES, 120)
    assert sum("  ".join(CELLS[1:3]) in line and CELLS[3] in line and CELLS[4] in line for line in lines) == 3


def test_the_verdict_stays_and_its_words_are_whole() -> None:
    lines = printed(DIFFERENCES, 80)
    text = " ".join(lines)
    assert "detectable" in lines[-1] and CELLS[3] not in text
    assert text.count(CELLS[1]) == 3 and text.count("difference") >= 2 + 3


@pytest.mark.parametrize("width", [40, 60, 79])
def test_nothing_is_cut_off(width: int) -> None:
    shown = "".join(printed(DIFFERENCES, width)).replace(" ", "")
    assert all(shown.count(letter) >= 3 for letter in ("0.028", "seen"))


def test_what_may_be_missing_is_named() -> None:
    heads = ["", "seeds", "final", "last 10", "best", "nearest prototype", "s per run"]
    rows = [[Shown(label), Shown("10"), *[Shown("66.85 ± 2.93")] * 4, Shown("69.2 ± 1.3")] for label in "abcdefg"]
    table = Table("accuracy, %", heads, rows)
    assert "s per run" in " ".join(printed(table, 120))
    narrow = printed(table, 60)
    assert narrow[-1] == "Left out, as the terminal is 60 wide: s per run, best."
    assert sum(line.count("66.85 ± 2.93") for line in narrow) == 3 * 7
