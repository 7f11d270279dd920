"""The leaderboard's tables and pictures are what its kept runs come to, whichever rows and settings there are."""

from __future__ import annotations

import json
import re
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from results_pages import FIRST, cells, plain

from fedproc.comparison.compare import Comparison, Row
from fedproc.figures.forest import in_words
from fedproc.statistics import holm

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import leaderboard
import leaderboard_tables
from leaderboard import DECLARED, FOLDER, REFERENCE, ROWS, SEEDS, TUNED

TEXT = (FOLDER / "README.md").read_text(encoding="utf-8")
PLAIN = plain(TEXT)
README = (FOLDER.parent.parent.parent / "README.md").read_text(encoding="utf-8")
BETAS = [beta for beta in leaderboard.BETAS if (FOLDER / leaderboard.setting(beta) / "runs").exists()]
TABLES = leaderboard_tables.tables()
COMPARISONS = leaderboard.comparisons()
FAMILY = leaderboard.primary(COMPARISONS)


@cache
def comparison(beta: str = "0.1") -> Comparison:
    return COMPARISONS[beta]


def under(beta: str) -> str:
    """The page's section of a setting."""
    first, last = leaderboard_tables.section(TEXT, f"## Beta {beta}")
    assert first >= 0, f"the page has no section of beta {beta}"
    return TEXT[first:last]


def shown(row: Row, name: str) -> str:
    values = [100 * value for value in row.by_seed(name).values()]
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def configs(beta: str, kind: str) -> list[tuple[Path, dict[str, Any]]]:
    """Of every run that is kept of a setting's tests or searches."""
    found = sorted((FOLDER / leaderboard.setting(beta)).glob(f"{kind}*/**/config.json"))
    return [(path.parent, json.loads(path.read_text(encoding="utf-8"))) for path in found]


def result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("table", TABLES, ids=[f"{table.under} {table.heads[0]}" for table in TABLES])
def test_the_page_has_every_table_as_the_kept_runs_have_it(table: leaderboard_tables.Printed) -> None:
    at, end = leaderboard_tables.standing(TEXT, table)
    assert at >= 0, f"{table.under}: no table {table.head}"
    assert TEXT[at:end] == table.text
    alike = [other for other in TABLES if other.head == table.head]
    assert TEXT.count(f"{table.head}\n") == len(alike)


@pytest.mark.parametrize("beta", BETAS)
def test_the_table(beta: str) -> None:
    """Computed once more, of the result files alone."""
    table = cells(under(beta), "| tuned | seeds |")
    finals: dict[str, dict[int, float]] = {}
    for run in (FOLDER / leaderboard.setting(beta) / "runs").glob("*/seed-*"):
        finals.setdefault(run.parent.name, {})[int(run.name.removeprefix("seed-"))] = (
            100 * result(run)["final_accuracy"]
        )
    assert {f"{label}{TUNED}" for label in table} == set(finals)
    corrected = holm({key: one.p for key, one in FAMILY.items()})
    for label, values in finals.items():
        seeds, final, difference, _, p, *_, verdict = table[label.removesuffix(TUNED)]
        assert seeds == str(len(values))
        assert final == f"{statistics.fmean(values.values()):.2f} ± {statistics.stdev(values.values()):.2f}"
        if label == REFERENCE:
            assert {difference, p, verdict} == {""}
            continue
        found = statistics.fmean(values[seed] - finals[REFERENCE][seed] for seed in values)
        assert float(difference) == pytest.approx(found, abs=0.0051)
        assert p == (f"{corrected[beta, label]:.3f}" if corrected[beta, label] >= 0.001 else "< 0.001")
        assert verdict in ("better", "worse") or corrected[beta, label] > 0.05 or "by less than" in verdict


def test_the_family_is_all_rows_at_both_betas() -> None:
    assert DECLARED == 30 and len(FAMILY) == sum(len(one.rows) - 1 for one in COMPARISONS.values())
    assert all(len(one.seeds) >= 3 for one in FAMILY.values())
    if len(FAMILY) < DECLARED:
        assert f"So {len(FAMILY)} of the family's {DECLARED} tests are here" in PLAIN
        assert f"Here are {len(FAMILY)} of its {DECLARED} tests" in plain(FIRST)
    else:
        assert "tests are here" not in PLAIN and "of its 30 tests" not in plain(FIRST)


def test_what_is_done() -> None:
    """A row is called done at a beta where all its seeds are there, and nowhere else."""
    heads = [f"beta {beta}" for beta in leaderboard.BETAS]
    table = cells(TEXT, f"| | {' | '.join(heads)} |")
    names = {words: label for label, words in ROWS.items()} | {"scaffold+fedproc": "scaffold+fedproc"}
    told: list[tuple[tuple[str, str], bool]] = []
    for rows, states in table.items():
        for name in (name for name in rows.split(", ") if name in names):
            told += [((names[name], b), state == "done") for b, state in zip(leaderboard.BETAS, states, strict=True)]
    home = {beta: FOLDER / leaderboard.setting(beta) / "runs" for beta in leaderboard.BETAS}
    seeds = {(row, b): len([*(home[b] / f"{row}{TUNED}").glob("seed-*")]) for row in ROWS for b in leaderboard.BETAS}
    assert sorted(told) == sorted((key, count == len(SEEDS)) for key, count in seeds.items())


@pytest.mark.parametrize("text", [FIRST, README], ids=["results", "README"])
def test_where_else_the_tables_stand(text: str) -> None:
    """The same rows and numbers, of the beta that was named last before; README has the first five, FedAvg, FedProc."""
    head = "| tuned | seeds |"
    places = [match.start() for match in re.finditer(re.escape(head), text)]
    assert 1 <= len(places) <= len(BETAS)
    for place in places:
        here = cells(under(leaderboard_tables.beta_before(text, place)), head)
        some = {*[*here][:5], "fedavg", "fedproc"} if text == README else {*here}
        shown = cells(text[place:], head)
        assert shown == {label: row[:4] + row[-1:] for label, row in here.items() if label in some}
        assert [*shown] == [label for label in here if label in some]
    assert leaderboard_tables.elsewhere(text, TABLES, few=text == README) == text


@pytest.mark.parametrize("beta", BETAS)
def test_runs_are_what_the_protocol_says(beta: str) -> None:
    winners = leaderboard.winners(beta)
    for run, config in configs(beta, "runs"):
        assert config["seed"] in SEEDS and f"seed-{config['seed']}" == run.name
        assert (config["rounds"], config["val_fraction"], config["ccvr"]) == (100, 0, "both")
        assert result(run)["status"] == "finished"
        won = {**winners[run.parent.name]}
        assert config["seed"] not in won.pop("search_seeds", [])  # which earlier searches do not say
        for name, value in won.items():
            assert (config[name] | value if isinstance(value, dict) else value) == config[name], (run, name)
    for run, config in [*configs(beta, "runs"), *configs(beta, "search")]:
        setting = ("data", "clients", "partition", "beta", "epochs", "batch_size", "sample", "network")
        assert [config[name] for name in setting] == [
            "cifar10", 10, "dirichlet", float(beta), 10, 64, 1.0, "simple-cnn",
        ], run  # fmt: skip


@pytest.mark.parametrize("beta", BETAS)
def test_every_row_had_the_same_search_once(beta: str) -> None:
    """And nothing of it saw a test image."""
    found: dict[str, list[tuple[int, int]]] = {}
    for run, config in configs(beta, "search"):
        found.setdefault(run.parent.parent.parent.name, []).append((config["rounds"], config["seed"]))
        names = result(run)
        assert "final_accuracy" not in names
        assert "val_final_accuracy" in names or (names["status"], config["rounds"]) == ("diverged", 50)
        assert config["val_fraction"] == 0.1
    budget = sorted([*[(50, 100)] * 8, *[(100, seed) for seed in (101, 102)] * 2])
    assert {row: sorted(runs) for row, runs in found.items()} == dict.fromkeys(found, budget)
    assert {f"{row}{TUNED}" for row in found} == set(leaderboard.winners(beta))
    assert {row.label for row in comparison(beta).rows} <= set(leaderboard.winners(beta))
    assert {row.label for row in comparison(beta).rows} <= {f"{row}{TUNED}" for row in ROWS}


def test_pictures_have_the_numbers_of_the_kept_runs() -> None:
    parts = ElementTree.parse(FOLDER / "forest.svg").iter("{http://www.w3.org/2000/svg}text")
    drawn = ["".join(text.itertext()) for text in parts]
    lines = [(name, one) for of in leaderboard_tables.forest(FAMILY).values() for name, one in of.items()]
    assert [text for text in drawn if re.match(r"[+-]\d+\.\d\d", text)] == [in_words(one) for _, one in lines]
    assert {name for name, _ in lines} <= set(drawn) & set(ROWS.values())
    for path in (f"{leaderboard.setting(beta)}/{name}.png" for beta in BETAS for name in ("curves", "differences")):
        assert (FOLDER / path).exists() and f"({path})" in TEXT
    assert "(forest.png)" in TEXT


def test_the_point_that_was_left_out() -> None:
    """By the first rung three of four rows' would not have gone on, and FedDyn's would not have won; the other one went
    on in one row alone.
    """
    section = plain(TEXT[TEXT.index("### The point that was left out") : TEXT.index("### Anchors")])
    home = FOLDER / leaderboard.setting("0.1")
    went_on: dict[str, list[tuple[tuple[Any, ...], float]]] = {}  # the points of trials that did, with their scores
    tried: dict[str, dict[tuple[Any, ...], float]] = {}
    for path in home.glob("search*/ranking.json"):
        for row, told in json.loads(path.read_text(encoding="utf-8"))["rows"].items():
            for trial in told["trials"]:
                point = tuple(trial["values"].get(name) for name in leaderboard.SHARED)
                score = 100 * (trial["scores"][0]["100"] or 0)  # none where it diverged
                if len(trial["scores"]) > 1:
                    went_on.setdefault(row, []).append((point, score))
                tried.setdefault(row, {})[point] = score
    for row in ("fedproc", "scaffold+fedproc", "fedproc-averaged"):
        best, second = sorted((score for _, score in went_on[row]), reverse=True)
        run = home / "left-out" / f"{row}{leaderboard.MORE}" / "seed-100"
        assert 100 * result(run)["val_final_accuracy"] < second < best and f"{second:.2f}" in section
    feddyn = home / "left-out" / f"feddyn{leaderboard.MORE}" / "seed-100"
    assert 100 * result(feddyn)["val_final_accuracy"] > max(score for _, score in went_on["feddyn"])
    later = sorted((home / "left-out-rung-2" / f"feddyn{leaderboard.MORE}").glob("seed-*"))
    assert [run.name for run in later] == ["seed-101", "seed-102"]
    mean = 100 * statistics.fmean(result(run)["val_final_accuracy"] for run in later)
    winner = 100 * leaderboard.won("0.1")["feddyn"][1][1]
    assert mean < winner and f"it comes to {mean:.2f}, the trial that won to {winner:.2f}" in section
    assert f"{tried['fedavg'][0.02, 'cosine', 1.0]:.2f} in the search" in section
    other = (0.04, "cosine", 0.5)
    on = {row for row, of in went_on.items() for point, _ in of if point == other}
    assert other in tried["fedavg"] and on == {"fednh"}
    assert "which went on in FedNH alone of the rows that had it" in section
    assert all({*points} <= {(0.02, "cosine", 1.0), other} for points in leaderboard.missing_points("0.1").values())


def test_what_is_said_of_scaffold_elsewhere() -> None:
    one = comparison().paired("final_accuracy")["scaffold-tuned"]
    assert one.low is not None and one.high is not None and min(one.values) > 0
    numbers = (100 * value for value in (one.difference, one.low, one.high))
    said = "{:.2f} points ahead of FedAvg ({:+.2f} to {:+.2f}), on each of ten seeds".format(*numbers)
    for text in (FIRST, README):
        assert said in plain(text)
    winners = leaderboard.winners("0.1")
    advice = "--method {method} --lr-schedule {lr_schedule} --calibrate {calibrate}"
    assert advice.format(**winners["scaffold-tuned"]) in plain(FIRST)


@pytest.mark.parametrize(
    ("name", "words"), [("clients100", "100 clients of which ten"), ("images2000", "2,000 images")]
)
def test_what_is_said_of_scaffold_in_other_settings(name: str, words: str) -> None:
    paired = leaderboard_tables.further()[f"cifar10-{name}-beta0.1"].paired("final_accuracy")
    holds = holm({label: each.p for label, each in paired.items()})["scaffold-tuned"] < 0.05
    assert holds == (name == "clients100") and len(paired) == 7
    assert "does not hold once corrected for the seven rows" in plain(FIRST)
    assert "do not hold after Holm" in plain(README)
    one = paired["scaffold-tuned"]
    assert one.low is not None and one.high is not None and one.low > 0 and len(one.seeds) == 5
    difference, low, high = (100 * value for value in (one.difference, one.low, one.high))
    for text, said in (
        (FIRST, f"{difference:+.2f}, {low:+.2f} to {high:+.2f})"),
        (README, f"({low:+.2f} to {high:+.2f})"),
    ):
        assert words in plain(text) and said in plain(text)
    assert f"{difference:.2f}" in plain(README)


def test_runs_in_other_settings_are_those_of_the_board() -> None:
    """With the options that won there and other clients or images, and the pictures are on the page."""
    winners = leaderboard.winners("0.1")
    expected = {"cifar10-clients100-beta0.1": (100, 0.1, "dirichlet"), "cifar10-images2000-beta0.1": (10, 1.0, "file")}
    assert set(leaderboard_tables.further()) == set(expected)
    for name, setting in expected.items():
        assert f"({name}/differences.png)" in TEXT and (FOLDER / name / "differences.png").exists()
        for path in (FOLDER / name / "runs").glob("*/seed-*/config.json"):
            config = json.loads(path.read_text(encoding="utf-8"))
            assert (config["clients"], config["sample"], config["partition"]) == setting
            assert (config["rounds"], config["epochs"], config["val_fraction"]) == (100, 10, 0)
            assert setting[2] == "file" or config["beta"] == 0.1
            assert result(path.parent)["status"] == "finished"
            for option, value in winners[path.parent.parent.name].items():
                assert (config[option] | value if isinstance(value, dict) else value) == config[option]
            if setting[2] == "file":
                shares = json.loads((FOLDER / name / f"partition-0.1-{config['seed']}.json").read_text())
                assert (
                    sum(map(len, shares)) == 2000 and config["partition_file"] == f"partition-0.1-{config['seed']}.json"
                )


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
    if len(FAMILY) == DECLARED:
        return  # they are corrected for in the table
    first, second, third = (p[f"{label}-tuned"] for label in ("scaffold", "scaffold+fedproc", "fedlc"))
    assert f"30 times SCAFFOLD's p of {first:.5f} is {30 * first:.3f}, 29 times" in PLAIN
    assert f"29 times scaffold+fedproc's of {second:.5f} is {29 * second:.3f}, and 28 times" in PLAIN
    assert f"28 times FedLC's of {third:.5f} is {28 * third:.3f}." in PLAIN
    assert sorted(p.values())[:3] == [first, second, third] and max(30 * first, 29 * second, 28 * third) < 0.05


def test_what_the_text_says_of_the_other_rows() -> None:
    """Three differ, and no interval lies within half a point; what a classifier made anew adds."""
    others = {label.removesuffix(TUNED): one for label, one in comparison().paired("final_accuracy").items()}
    assert {label for label, one in others.items() if holm({k: o.p for k, o in others.items()})[label] < 0.05} == {
        "scaffold", "scaffold+fedproc", "fedlc",
    }  # fmt: skip
    assert all(one.low is not None and one.high is not None for one in others.values())
    assert not any((one.low or 0) > -0.005 and (one.high or 0) < 0.005 for one in others.values())
    assert max(others["fedlc"].values) < 0 < min(others["scaffold"].values)
    home = FOLDER / leaderboard.setting("0.1")
    floor = [100 * result(run)["val_final_accuracy"] for run in home.glob("fedlc-floor/*/seed-*")]
    won_with = 100 * leaderboard.won("0.1")["fedlc"][1][1]
    assert len(floor) == 2 and f"it comes to {statistics.fmean(floor):.2f}" in PLAIN and f"({won_with:.2f})" in PLAIN
    added = {
        row.label.removesuffix(TUNED): 100
        * (
            statistics.fmean(row.by_seed("final_ccvr_accuracy").values())
            - statistics.fmean(row.by_seed("final_accuracy").values())
        )
        for row in comparison().rows
    }
    assert round(added.pop("fedlc")) == 9 and round(added.pop("feddyn")) == -1
    assert [round(min(added.values()), 1), round(max(added.values()), 1)] == [0.4, 1.5]
    least, second, *_, most = sorted(added, key=added.__getitem__)
    assert {least, second} == {"fednh", "fedetf"} and most == "fedntd"
    won = {label.removesuffix(TUNED): values for label, (values, _) in leaderboard.won("0.1").items()}
    assert {values["lr_schedule"] for values in won.values()} == {"cosine"}
    assert {label for label, values in won.items() if values["lr"] == 0.04} == {"fednh", "fedlc"}
    assert {values.get("calibrate") for values in won.values()} == {None, 0.5, 1.0}


def test_the_runs_that_were_timed() -> None:
    """Their last rounds' means stand beside those of the runs that were repeated."""
    path = FOLDER.parent / "speed" / "h200-known-slopes.json"
    found = json.loads(path.read_text(encoding="utf-8"))["sweep"]["accuracy"]
    said = ", ".join(
        f"{name} {statistics.fmean(100 * found[f'{name.lower()}/seed-{seed}'] for seed in range(3)):.2f}"
        for name in ("FedAvg", "FedProx", "SCAFFOLD", "MOON", "FedNova", "FedProc")
    )
    assert said in PLAIN


def test_the_runs_that_were_repeated() -> None:
    kept = [FOLDER.parent / "cifar10-beta0.5" / "runs", FOLDER / "again", FOLDER / "again-2"]
    table = cells(TEXT, "| first, second, third |")
    assert len(table) == 6
    gaps: dict[int, list[float]] = {1: [], 2: []}
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
            for place, found_gaps in gaps.items():
                found_gaps.append(means[place] - means[0])
    assert all(min(found_gaps) < 0 < max(found_gaps) for found_gaps in gaps.values())
    every = [abs(gap) for found_gaps in gaps.values() for gap in found_gaps]
    assert sum(gap > 0.5 for gap in every) <= 2 and max(every) < 0.55


def test_kept_runs_are_of_the_commits_that_the_page_names() -> None:
    """Each of a clean one; within a row of a search there is one alone."""
    named = set(re.findall(r"of commit ([0-9a-f]{7})", PLAIN))
    found: dict[Path, set[str]] = {}
    for path in (
        path for name in ("cifar10-*", "again*", "ceiling") for path in FOLDER.glob(f"{name}/**/environment.json")
    ):
        environment = json.loads(path.read_text(encoding="utf-8"))
        assert re.fullmatch("[0-9a-f]{40}", environment["commit"]) and environment["source_sha256"], path
        row = path.parents[3] if "trial-" in path.parents[2].name else path.parents[1]
        found.setdefault(row, set()).add(environment["commit"][:7])
    assert set().union(*found.values()) == named
    assert all(len(commits) == 1 for row, commits in found.items() if row.parent.name.startswith("search"))
    assert found[FOLDER / "cifar10-beta0.1" / "runs" / f"feddyn{TUNED}"] == {"9ad7c77"}
