"""The first page of docs/results and README's first screen tell what the kept runs come to, and nothing else."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from results_pages import FIRST, RESULTS, cells, found, plain

from fedproc.figures.forest import in_words
from fedproc.report.origins import of_runs
from fedproc.statistics import Paired

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import draw_forest

TEXT = plain(FIRST)
README = plain((RESULTS.parent.parent / "README.md").read_text(encoding="utf-8"))
BEST, BETA = (f"{draw_forest.TUNED}/{name}" for name in draw_forest.SETTINGS[draw_forest.TUNED])
CLAIMS = {  # what a claim's line says, and of which runs: see results_pages
    "ahead of the best rival on CIFAR-10": ("fails", "to MOON", "main/fedproc - main/moon"),
    "slower at first": (
        "holds",
        "to FedAvg after 10 rounds",
        "main/fedproc:test_accuracy@10 - main/fedavg:test_accuracy@10",
    ),
    "better in the end": ("fails", "to FedAvg", "main/fedproc - main/fedavg"),
    "better representations early": (
        "fails",
        "nearest prototype, to FedAvg after 10 rounds",
        "main/fedproc:prototype_accuracy@10 - main/fedavg:prototype_accuracy@10",
    ),
    "alpha's schedule beats a constant 0.5": ("fails", "to the constant", "main/fedproc - main/alpha-0.5"),
    "alpha's schedule beats two stages": ("holds at tau 1", "to two stages", "main/fedproc - main/two-stage"),
    "more clients do not matter": (
        "fails",
        "FedProc with 50 clients to itself with 10",
        "clients50/fedproc - main/fedproc",
    ),
    "ten local epochs are best": ("open", "FedAvg with 10 to 5", "main/fedavg - epochs5/fedavg"),
    "better at every skew": ("open", "on CIFAR-10, beta 0.1, to FedAvg", "beta0.1/fedproc - beta0.1/fedavg"),
    "ahead with 50 and 100 clients": ("open", "on CIFAR-10, 50 clients, to MOON", "clients50/fedproc - clients50/moon"),
}
WITHOUT = {  # claims whose number is no difference in accuracy
    "as fast as SCAFFOLD and FedProx": ("holds, simple CNN", "1.00 and 1.05 times their seconds, no interval"),
    "cheaper on larger networks": ("open", "1.03 and 1.07 times FedAvg's seconds, two pairs"),
    "clients match the global distribution": ("open", "a picture of one seed"),
    "+7.1 on CIFAR-100": ("open", "not run at T = 100"),
    "+7.9 on Tiny-ImageNet": ("open", "not run"),
}


@cache
def forest() -> dict[str, Paired]:
    """Every line of the picture."""
    groups = draw_forest.groups()
    lines = {f"{head}/{name}": one for head, settings in groups.items() for name, one in settings.items()}
    return {**lines, draw_forest.MEAN: draw_forest.mean(groups)}


def claims() -> dict[str, tuple[str, str]]:
    rows = cells(FIRST, "| claim | | our number |")
    return {re.sub(r"^\[(.*?)\]\(.*", r"\1", claim): (row[0], row[1]) for claim, row in rows.items()}


def test_every_claim_has_its_verdict_and_one_number() -> None:
    expected = dict(WITHOUT)
    for claim, (verdict, of, runs) in CLAIMS.items():
        one = found(runs)
        expected[claim] = (verdict, f"{of}: {one.difference:+.2f} ({one.low:+.2f} to {one.high:+.2f})")
    assert claims() == expected


@pytest.mark.parametrize("claim", [claim for claim, (verdict, *_) in CLAIMS.items() if verdict != "open"])
def test_verdicts_are_what_intervals_allow(claim: str) -> None:
    verdict, _, runs = CLAIMS[claim]
    one = found(runs)
    assert one.low is not None and one.high is not None
    if claim == "slower at first":
        assert one.high < 0
    elif verdict.startswith("holds"):
        assert one.low > 0
    else:
        claimed = {"ahead of the best rival on CIFAR-10": 1.6, "better in the end": 4.4}
        assert one.high < claimed.get(claim, 4.4 if "constant" in claim else 0)


def test_the_picture_has_the_numbers_of_the_kept_runs() -> None:
    parts = ElementTree.parse(RESULTS / "forest.svg").iter("{http://www.w3.org/2000/svg}text")
    drawn = ["".join(text.itertext()) for text in parts]
    assert [text for text in drawn if re.match(r"[+-]\d+\.\d\d", text)] == [
        in_words(one)
        for head in draw_forest.SETTINGS
        for name, one in forest().items()
        if name.startswith(f"{head}/") or (name == draw_forest.MEAN and head == draw_forest.AS_PRINTED)
    ]


def test_the_three_sentences() -> None:
    mean = forest()[draw_forest.MEAN]
    assert mean.low is not None and mean.high is not None and mean.seeds == tuple(range(5))
    eight = f"{-100 * mean.difference:.2f} points behind FedAvg over eight CIFAR-10 settings "
    assert f"{eight}({-100 * mean.high:.2f} to {-100 * mean.low:.2f})" in README
    said = f"it is {-100 * mean.difference:.2f} points behind on average over eight settings "
    assert f"{said}({-100 * mean.high:.2f} to {-100 * mean.low:.2f})" in TEXT
    for name, words in (
        (BETA, "no difference is seen at beta 0.1 ({})"),
        (BEST, "at beta 0.5 the two are equal within half a point ({})"),
    ):
        assert words.format(in_words(forest()[name]).replace(" (", ", ").rstrip(")")) in TEXT
    assert forest()[BETA].verdict == "no difference seen"
    best = json.loads((RESULTS / "best" / "runs" / "comparison.json").read_text(encoding="utf-8"))["rows"]
    assert best["fedproc-best"]["difference"]["final_accuracy"]["verdict"] == "equal within 0.5 points"


def test_which_settings_differ_by_themselves() -> None:
    eight = {name: one for name, one in forest().items() if name.startswith(draw_forest.AS_PRINTED)}
    assert [name.split("/")[1] for name, one in eight.items() if one.verdict != "no difference seen"] == [
        "E = 1",
        "E = 5",
        "100 clients, 20 a round",
    ]


def test_where_the_runs_come_from() -> None:
    environments = [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS.rglob("environment.json")]
    counts = Counter(each["commit"] for each in environments)
    changed = sorted(commit[:7] for commit in counts if commit.endswith("-dirty"))
    assert len(changed) == 5 and all("source_sha256" not in e for e in environments if e["commit"].endswith("-dirty"))
    rows = cells(FIRST, "| runs | made with |")
    older = sum(count for commit, count in counts.items() if commit.endswith("-dirty"))
    assert f"({', '.join(changed)}), without a hash" in rows[str(older)][0]
    for commit, count in counts.items():
        if not commit.endswith("-dirty"):
            assert rows[str(count)][0] == f"commit {commit[:7]}, clean, with the hash of its sources"
    assert f"{older} of {len(environments)} runs are of trees with uncommitted changes" in of_runs(environments)


def test_no_other_number_stands_on_the_page() -> None:
    """Whatever has two digits after its point is one of the numbers that other tests hold."""
    held = {f"{number:+.2f}" for one in forest().values() for number in in_points(one)}
    held |= {f"{number:+.2f}" for _, _, runs in CLAIMS.values() for number in told(found(runs))}
    leaderboard = plain((RESULTS / "leaderboard" / "README.md").read_text(encoding="utf-8"))
    held |= {signed(number) for number in DECIMALS.findall(leaderboard)}
    held |= {signed(number) for _, words in WITHOUT.values() for number in DECIMALS.findall(words)}
    for text in (TEXT, README[: README.index("## First steps")]):
        shown = {signed(number) for number in DECIMALS.findall(text)}
        assert {number for number in shown if number not in held and f"-{number[1:]}" not in held} == set()


DECIMALS = re.compile(r"(?<![\d.])[-+]?\d+\.\d\d(?!\d)")


def signed(number: str) -> str:
    return number if number[0] in "+-" else f"+{number}"


def in_points(one: Paired) -> list[float]:
    return [100 * number for number in (one.difference, one.low, one.high) if number is not None]


def told(one: Paired) -> list[float]:
    return [number for number in (one.difference, one.low, one.high) if number is not None]
