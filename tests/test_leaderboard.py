"""The leaderboard's tables are what its kept runs come to."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from functools import cache
from pathlib import Path

import pytest
from results_pages import FIRST, cells, plain

from fedproc.comparison.compare import Comparison, Row, rows_in
from fedproc.report.summary import differences

FOLDER = Path(__file__).parent.parent / "docs" / "results" / "leaderboard"
TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
PLAIN = plain(TEXT)
README = (FOLDER.parent.parent.parent / "README.md").read_text(encoding="utf-8")


@cache
def comparison() -> Comparison:
    rows = rows_in(FOLDER / "cifar10-beta0.1" / "runs")
    return Comparison([Row.of(label, runs) for label, runs in rows.items()], None, "fedavg-tuned")


def shown(row: Row, name: str) -> str:
    values = [100 * value for value in row.by_seed(name).values()]
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def test_the_table() -> None:
    table = cells(TEXT, "| tuned | seeds |")
    found = {row[0].text: [cell.text for cell in row[2:]] for row in differences(comparison()).rows if row[0].text}
    assert {f"{label}-tuned" for label in table} == {row.label for row in comparison().rows}
    for row in comparison().rows:
        expected = [str(len(row.runs)), shown(row, "final_accuracy"), *found.get(row.label, [""] * 5)]
        assert table[row.label.removesuffix("-tuned")] == expected


@pytest.mark.parametrize("text", [FIRST, README], ids=["results", "README"])
def test_where_else_the_table_stands(text: str) -> None:
    here, there = cells(TEXT, "| tuned | seeds |"), cells(text, "| tuned | seeds |")
    assert {label: row[:4] + row[-1:] for label, row in here.items()} == there


def test_what_is_said_of_scaffold_elsewhere() -> None:
    one = comparison().paired("final_accuracy")["scaffold-tuned"]
    assert one.low is not None and one.high is not None and min(one.values) > 0
    numbers = (100 * value for value in (one.difference, one.low, one.high))
    said = "{:.2f} points ahead of FedAvg ({:+.2f} to {:+.2f}), on each of ten seeds".format(*numbers)
    for text in (FIRST, README):
        assert said in plain(text)
    winners = tomllib.loads((FOLDER / "cifar10-beta0.1" / "search" / "winners.toml").read_text(encoding="utf-8"))
    advice = "--method {method} --lr-schedule {lr_schedule} --calibrate {calibrate}"
    assert advice.format(**winners["scaffold-tuned"]) in plain(FIRST)


def test_the_exploratory_table() -> None:
    table = cells(TEXT, "| tuned | nearest prototype |")
    for row in comparison().rows:
        names = ("final_prototype_accuracy", "final_ccvr_accuracy", "final_lda_accuracy")
        assert table[row.label.removesuffix("-tuned")] == [shown(row, name) for name in names]


def test_what_the_text_says_of_scaffold_with_fedproc() -> None:
    both = Comparison(comparison().rows, None, "scaffold-tuned")
    for name, words in (
        ("final_accuracy", "({d:+.2f} to SCAFFOLD alone, {low:+.2f} to {high:+.2f})"),
        ("final_prototype_accuracy", "by {d:.1f} points ({low:.1f} to {high:.1f})"),
    ):
        one = both.paired(name)["scaffold+fedproc-tuned"]
        assert one.low is not None and one.high is not None
        assert words.format(d=100 * one.difference, low=100 * one.low, high=100 * one.high) in PLAIN
    p = {label: one.p for label, one in comparison().paired("final_accuracy").items()}
    first, second = p["scaffold-tuned"], p["scaffold+fedproc-tuned"]
    assert f"SCAFFOLD's p of {first:.5f} is {30 * first:.3f}, and 29 times" in PLAIN
    assert f"scaffold+fedproc's of {second:.5f} is {29 * second:.3f}." in PLAIN


@pytest.mark.parametrize(("label", "method"), [("FedAvg", "fedavg"), ("FedProc", "fedproc")])
def test_the_anchors(label: str, method: str) -> None:
    kept = [FOLDER.parent / "cifar10-beta0.1" / "runs", FOLDER / "cifar10-beta0.1" / "anchors"]
    curves = []
    for folder in kept:
        lines = (folder / method / "seed-0" / "metrics.jsonl").read_text().splitlines()
        curves.append({r["round"]: 100 * r["test_accuracy"] for r in map(json.loads, lines)})
    for cell, (first, last) in zip(
        cells(TEXT, "| test accuracy, %, mean over rounds |")[f"{label}, then and now"],
        ((11, 50), (51, 100), (91, 100), (100, 100)),
        strict=True,
    ):
        means = [statistics.fmean(curve[t] for t in range(first, last + 1)) for curve in curves]
        assert cell == ", ".join(f"{mean:.2f}" for mean in means)


def test_the_runs_that_were_repeated() -> None:
    kept = [FOLDER.parent / "cifar10-beta0.5" / "runs", FOLDER / "again"]
    table = cells(TEXT, "| then, now |")
    assert len(table) == 6
    gaps = []
    for label, found in table.items():
        for cell, name in zip(found, ("last10_accuracy", "final_accuracy"), strict=True):
            means = [
                statistics.fmean(
                    100 * json.loads((folder / label.lower() / f"seed-{seed}" / "result.json").read_text())[name]
                    for seed in range(3)
                )
                for folder in kept
            ]
            assert cell == ", ".join(f"{mean:.2f}" for mean in means)
            gaps.append(means[1] - means[0])
    assert max(map(abs, gaps)) < 0.5 and min(gaps) < 0 < max(gaps)


def test_kept_runs_are_of_the_commits_that_the_page_names() -> None:
    first, second = dict.fromkeys(re.findall(r"of commit ([0-9a-f]{7})", PLAIN))
    of: dict[str, int] = {first: 0, second: 0}
    folders = (FOLDER / "cifar10-beta0.1", FOLDER / "again")
    for path in (path for folder in folders for path in folder.rglob("environment.json")):
        commit = json.loads(path.read_text())["commit"][:7]
        assert commit == (second if {"feddyn", "feddyn-tuned", "again"} & set(path.parts) else first), path
        of[commit] += 1
    assert of == {first: 60 + 2 + 47, second: 12 + 10 + 18}


def test_nothing_of_the_search_saw_a_test_image() -> None:
    found = list((FOLDER / "cifar10-beta0.1").glob("search*/**/result.json"))
    assert len(found) == 60 + 12
    for path in found:
        names = json.loads(path.read_text())
        assert "val_final_accuracy" in names and "final_accuracy" not in names
