"""The pages of docs/results as text, their tables, and what kept runs come to."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from fedproc.statistics import Paired, compare

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FIRST = (RESULTS / "README.md").read_text(encoding="utf-8")
ALL = "\n\n".join(page.read_text(encoding="utf-8") for page in sorted(RESULTS.glob("*.md")))  # the leaderboard aside
FIVE = range(5)
FOLDERS = {
    "main": "cifar10-beta0.5",
    "two": "cifar10-two-stage-tau0.2",
    "cifar100-0.01": "cifar100-lr0.01",
    "cifar100-0.1": "cifar100-lr0.1",
    "ablation": "ablation",
    "best": "best",
    "search": "search",
}
SHORT = {
    "": "final_accuracy",
    "prototype": "final_prototype_accuracy",
    "val": "val_final_accuracy",
    "val-prototype": "val_final_prototype_accuracy",
}


def plain(text: str) -> str:
    """On one line."""
    return " ".join(text.split())


def cells(text: str, head: str) -> dict[str, list[str]]:
    """The rows of the table whose head begins so."""
    lines = text[text.index(head) :].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values)


def found(expression: str) -> Paired:
    """The sum of what the expression names over the seeds that all have, held against nothing."""
    expression, few, _ = expression.partition(" over five")
    words = expression.split()
    terms = [(1, words[0])] + [
        ({"+": 1, "-": -1}[sign], term) for sign, term in zip(words[1::2], words[2::2], strict=True)
    ]
    parts = [(sign, numbers(term)) for sign, term in terms]
    seeds = sorted(set.intersection(*(set(values) for _, values in parts)) & set(FIVE if few else range(1000)))
    total = {seed: sum(sign * values[seed] for sign, values in parts) for seed in seeds}
    if len(seeds) == 1:
        return Paired((seeds[0],), total[seeds[0]], 0, 0, 1, 1, None)
    return compare({"it": total, "nothing": dict.fromkeys(seeds, 0.0)}, "nothing")["it"]


@cache
def numbers(term: str) -> dict[int, float]:
    """In per cent, by seed."""
    place, _, what = term.partition(":")
    folder, label = place.split("/")
    what = SHORT.get(what, what)
    runs = sorted((RESULTS / FOLDERS.get(folder, f"cifar10-{folder}") / "runs" / label).glob("seed-*"))
    assert runs, term
    return {int(run.name.removeprefix("seed-")): 100 * number(run, what) for run in runs}


def number(run: Path, what: str) -> float:
    name, _, rounds = what.partition("@")
    if not rounds:
        return float(json.loads((run / "result.json").read_text(encoding="utf-8"))[name])
    first, last = (int(part) for part in (rounds.split("-") * 2)[:2])
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    some = [line[name] for line in lines if first <= line["round"] <= last]
    assert len(some) == last - first + 1
    return float(sum(some) / len(some))
