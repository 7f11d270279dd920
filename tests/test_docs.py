"""What the docs say of accuracies is what the kept run folders say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from results_pages import ALL, cells

from fedproc.cli.commands import execute
from fedproc.comparison.compare import Row
from fedproc.report.gather import gather
from fedproc.statistics import Paired, compare

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from keep_results import compared as compared_in

DOCS = Path(__file__).parent.parent / "docs" / "results"
NAMES = {
    "FedAvg": "fedavg",
    "FedProx": "fedprox",
    "SCAFFOLD": "scaffold",
    "MOON": "moon",
    "FedNova": "fednova",
    "FedAvgM": "fedavgm",
    "FedProc": "fedproc",
    "FedProc as the authors' code has it": "author-code",
    "FedProc, alpha 0.5": "alpha-0.5",
    "FedProc in two stages": "two-stage",
    "SOLO": "solo",
    "central": "central",
}
BEST = {"FedAvg": "fedavg-best", "FedProc": "fedproc-best", "MOON": "moon-best"}
ABLATED = {
    "nothing changed": "fedproc",
    "normalised z": "normalised-z",
    "tau 0.1": "tau-0.1",
    "tau 0.2": "tau-0.2",
    "tau 0.5": "tau-0.5",
    "prototypes weighted by counts": "weighted-by-counts",
    "first prototypes zero": "c0-zeros",
    "first prototypes random": "c0-random",
    "a first round of cross-entropy": "first-round-cross-entropy",
    "calibrated logits": "calibrated",
}


@pytest.mark.parametrize("folder", [path.parent for path in sorted(DOCS.rglob("comparison.json"))], ids=str)
def test_kept_comparisons_are_those_of_the_kept_runs(folder: Path) -> None:
    kept = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    assert alike(json.loads(json.dumps(compared_in(folder))), kept)


def test_kept_exhibits_are_those_of_the_kept_runs(tmp_path: Path) -> None:
    words = ["paper", "all", "--scale", "full", "--import", str(DOCS), "--only-done", "--out", str(tmp_path)]
    assert execute([*words, "--seeds", *map(str, range(10))]) == 0
    kept = {path.parent.name: path for path in (DOCS / "paper").glob("*/exhibit.json")}
    made = {path.parent.name: path for path in tmp_path.glob("full/*/exhibit.json")}
    assert set(made) == set(kept) - {"tsne"}  # which needs weights
    for name, path in made.items():
        found, expected = (json.loads(p.read_text(encoding="utf-8")) for p in (path, kept[name]))
        for part in ("cells", "differences"):
            assert alike(found[part], expected[part])


def alike(found: object, expected: object) -> bool:
    """The same words and places, and numbers up to rounding."""
    return list(flat(found)) == list(flat(expected)) and all(
        flat(found)[place] == (pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value)
        for place, value in flat(expected).items()
    )


def flat(value: object, path: str = "") -> dict[str, object]:
    """Every number and word of nested JSON, by where it stands."""
    if isinstance(value, dict):
        return {p: v for name, inner in value.items() for p, v in flat(inner, f"{path}/{name}").items()}
    if isinstance(value, list):
        return {p: v for place, inner in enumerate(value) for p, v in flat(inner, f"{path}/{place}").items()}
    return {path: value}


def told(folder: str) -> dict[str, dict[str, str]]:
    """What a folder's runs come to, row by row, as tables have it."""
    (group,) = gather([DOCS / folder]).groups
    names = ("final_accuracy", "last10_accuracy", "final_prototype_accuracy")
    found = {}
    for row in group.comparison.rows:
        found[row.label] = {"seeds": str(len(row.runs)), **{name: spread(row, name) for name in names}}
    for label, one in group.comparison.paired("final_accuracy").items():
        found[label] |= {**difference(one), "verdict": one.verdict}
    return found


def difference(one: Paired) -> dict[str, str]:
    return {
        "difference": f"{100 * one.difference:+.2f}",
        "interval": f"{100 * one.low:+.2f} to {100 * one.high:+.2f}",
    }


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    return told("cifar10-beta0.5")


def spread(row: Row, name: str) -> str:
    mean, deviation = row.spread(name) or (float("nan"), None)
    return f"{100 * mean:.2f} ± {100 * (deviation or 0):.2f}"


@pytest.mark.parametrize("shown", NAMES)
def test_the_results_table(rows: dict[str, dict[str, str]], shown: str) -> None:
    row = cells(ALL, "| | published |")[shown]
    mine = rows[NAMES[shown]]
    assert row[2:6] == [mine[n] for n in ("seeds", "final_accuracy", "last10_accuracy", "final_prototype_accuracy")]
    assert row[6:9] == [mine.get(name, "") for name in ("difference", "interval", "verdict")]


@pytest.mark.parametrize(
    ("head", "folder", "names"), [("| best of |", "best", BEST), ("| FedProc with |", "ablation", ABLATED)]
)
def test_the_tables_of_variants(head: str, folder: str, names: dict[str, str]) -> None:
    table = cells(ALL, head)
    found = told(folder)
    assert {names[shown] for shown in table} == set(found)
    order = ("final_accuracy", "last10_accuracy", "final_prototype_accuracy", "difference", "interval", "verdict")
    for shown, row in table.items():
        assert row == [found[names[shown]].get(name, "") for name in order]


@pytest.mark.parametrize(
    ("head", "folders"),
    [
        (
            "| final accuracy, % | E = 1 |",
            ["cifar10-epochs1", "cifar10-epochs5", "cifar10-beta0.5", "cifar10-epochs20"],
        ),
        ("| final accuracy, % | beta 0.1 |", ["cifar10-beta0.1", "cifar10-beta0.5", "cifar10-beta5"]),
        ("| final accuracy, % | 10 clients |", ["cifar10-beta0.5", "cifar10-clients50", "cifar10-clients100"]),
    ],
)
def test_the_tables_over_settings(head: str, folders: list[str]) -> None:
    table = cells(ALL, head)
    for place, folder in enumerate(folders):
        (group,) = gather([DOCS / folder]).groups
        runs = {row.label: [run for run in row.runs if run.seed < 5] for row in group.comparison.rows}
        for shown in ("FedAvg", "MOON", "FedProc"):
            mine = runs.get(NAMES[shown])
            assert table[shown][place] == (spread(Row.of(shown, mine), "final_accuracy") if mine else "")
        finals = {
            label: {run.seed: run.result["final_accuracy"] for run in runs[label]} for label in ("fedavg", "fedproc")
        }
        expected = difference(compare(finals, "fedavg")["fedproc"])
        assert table["FedProc to FedAvg, paired"][place] == expected["difference"]
        assert table["95 % interval"][place] == expected["interval"]


def test_the_search_table() -> None:
    (group,) = gather([DOCS / "search"]).groups
    table = cells(ALL, "| trial |")
    assert list(table) == [row.label for row in group.comparison.rows]
    for row in group.comparison.rows:
        shown = [cell.strip("*") for cell in table[row.label][1:]]
        assert shown == [spread(row, "val_final_accuracy"), spread(row, "val_final_prototype_accuracy")]
        if (averaged := row.spread("val_final_averaged_accuracy")) is not None:
            assert f"averaged weights reach {100 * averaged[0]:.2f}" in table[row.label][0]


def test_what_is_kept_of_new_runs_is_read_again(compared: Path, tmp_path: Path) -> None:
    script = Path(__file__).parent.parent / "scripts" / "keep_results.py"
    subprocess.run([sys.executable, str(script), str(compared), str(tmp_path / "kept")], check=True)
    found = gather([tmp_path / "kept"])
    assert len(found.runs) == 4 and all(run.result["status"] == "finished" for run in found.runs)
    assert all(run.confusion is not None for run in found.runs)
    assert (tmp_path / "kept" / "comparison.json").is_file()
