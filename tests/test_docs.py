"""What the docs say of accuracies is what the kept run folders say."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproc.report.gather import gather

DOCS = Path(__file__).parent.parent / "docs" / "results"
NAMES = {"FedAvg": "fedavg", "FedProx": "fedprox", "SCAFFOLD": "scaffold", "MOON": "moon", "FedNova": "fednova"}
NAMES["FedProc"] = "fedproc"


def cells(text: str, head: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins so."""
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    (group,) = gather([DOCS / "cifar10-beta0.5"]).groups
    names = ("final_accuracy", "last10_accuracy", "final_prototype_accuracy")
    found = {}
    for row in group.comparison.rows:
        spreads = {name: row.spread(name) for name in names}
        found[row.label] = {n: f"{100 * s[0]:.2f} ± {100 * (s[1] or 0):.2f}" for n, s in spreads.items() if s}
    for label, one in group.comparison.paired("final_accuracy").items():
        found[label]["difference"] = f"{100 * one.difference:+.2f}"
        found[label]["interval"] = f"{100 * one.low:+.2f} to {100 * one.high:+.2f}"
    return found


@pytest.mark.parametrize("shown", NAMES)
def test_the_results_table(rows: dict[str, dict[str, str]], shown: str) -> None:
    row = cells((DOCS / "README.md").read_text(encoding="utf-8"), "| | published |")[shown]
    mine = rows[NAMES[shown]]
    assert row[2:5] == [mine["final_accuracy"], mine["last10_accuracy"], mine["final_prototype_accuracy"]]
    assert row[5:7] == [mine.get("difference", ""), mine.get("interval", "")]


def test_readmes_first_table(rows: dict[str, dict[str, str]]) -> None:
    text = (DOCS.parent.parent / "README.md").read_text(encoding="utf-8")
    table = cells(text, "| accuracy, % |")
    order = [
        NAMES[name.strip()] for name in text[text.index("| accuracy, % |") :].splitlines()[0].strip("|").split("|")[1:]
    ]
    for line, name in (("ours", "final_accuracy"), ("ours, by the nearest prototype", "final_prototype_accuracy")):
        for label, cell in zip(order, table[line], strict=True):
            mean, deviation = (float(part) for part in rows[label][name].split(" ± "))
            shown = [float(part) for part in cell.strip("*").split(" ± ")]
            assert shown == pytest.approx([mean, deviation], abs=0.0501)
