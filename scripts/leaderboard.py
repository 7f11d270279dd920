"""The leaderboard's rows and settings, and what its kept runs come to: for the scripts and tests beside it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedproc.comparison.compare import Comparison, Row, rows_in
from fedproc.statistics import Paired, family, over_settings

FOLDER = Path(__file__).parent.parent / "docs" / "results" / "leaderboard"
BETAS = ("0.1", "0.5")
SEEDS = tuple(range(40, 50))
ROWS = {  # in the order of the issue, and in words
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "moon": "MOON",
    "fednova": "FedNova",
    "fedavgm": "FedAvgM",
    "fedproc": "FedProc",
    "fedproc-averaged": "FedProc of the averaged model",
    "scaffold+fedproc": "SCAFFOLD with FedProc",
    "fedetf": "FedETF",
    "fednh": "FedNH",
    "fedlc": "FedLC",
    "fedrs": "FedRS",
    "feddyn": "FedDyn",
    "fedntd": "FedNTD",
    "feddecorr": "FedDecorr",
}
SHARED = ("lr", "lr_schedule", "calibrate")  # options that are searched of all rows, as far as these have them
TUNED = "-tuned"
MORE = "-more"  # a row at a point that its search left out
REFERENCE = f"fedavg{TUNED}"
DECLARED = (len(ROWS) - 1) * len(BETAS)  # tests of the primary family

Tests = dict[tuple[str, str], Paired]


def setting(beta: str) -> str:
    return f"cifar10-beta{beta}"


def winners(beta: str, folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """What each row that was searched won with, by its label with -tuned."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / setting(beta)).glob("search*/winners.toml")):
        found |= tomllib.loads(path.read_text(encoding="utf-8"))
    return found


def won(beta: str, folder: Path = FOLDER) -> dict[str, tuple[dict[str, Any], list[float]]]:
    """Of each row that was searched the winner's value of every option that was, and its mean validation accuracy in
    each rung; the best first.
    """
    found = {}
    for path in sorted((folder / setting(beta)).glob("search*/ranking.json")):
        for label, row in json.loads(path.read_text(encoding="utf-8"))["rows"].items():
            for trial in row["trials"]:
                if trial["trial"] == row["winner"]:
                    found[label] = (trial["values"], [sum(rung.values()) / len(rung) for rung in trial["scores"]])
    return dict(sorted(found.items(), key=lambda item: -item[1][1][-1]))


def comparison(beta: str, folder: Path = FOLDER) -> Comparison | None:
    """The test runs of a setting; None where there are none."""
    return compared(folder / setting(beta))


def missing_points(beta: str, folder: Path = FOLDER) -> dict[str, list[tuple[Any, ...]]]:
    """The points of the shared options that FedAvg was tried at in the first rung and a row that has all these options
    was not.
    """
    tried: dict[str, set[tuple[Any, ...]]] = {}
    for path in sorted((folder / setting(beta)).glob("search*/*/trial-*/rung-1/seed-*/config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        tried.setdefault(path.parts[-5], set()).add(tuple(config[name] for name in SHARED))
    fixed = tomllib.loads((FOLDER / "rows.toml").read_text(encoding="utf-8"))
    rows = {row: points for row, points in tried.items() if not {*SHARED} & {*fixed.get(row, ())}}
    found = {row: sorted(tried["fedavg"] - points) for row, points in rows.items()}
    return {row: points for row, points in found.items() if points}


def compared(home: Path) -> Comparison | None:
    """The runs of a folder, the row with the highest difference to tuned FedAvg first: means are over a row's own
    seeds, which may be other ones.
    """
    rows = [Row.of(label, runs) for label, runs in rows_in(home / "runs").items()]
    found = Comparison([row for row in rows if row.runs], None, REFERENCE)
    ahead = {label: one.difference for label, one in found.paired("final_accuracy").items()}
    found.rows.sort(key=lambda row: -ahead.get(row.label, 0.0))
    return found if found.rows else None


def comparisons(folder: Path = FOLDER) -> dict[str, Comparison]:
    """By beta, those that are there."""
    return {beta: one for beta in BETAS if (one := comparison(beta, folder)) is not None}


def primary(found: Mapping[str, Comparison]) -> Tests:
    """The declared family as far as it is there: final accuracy minus tuned FedAvg's, rows of all settings, p corrected
    by Holm over all of them together.
    """
    return family(
        {(beta, label): one for beta, each in found.items() for label, one in each.paired("final_accuracy").items()}
    )


def of_beta(tests: Tests, beta: str) -> dict[str, Paired]:
    return {label: one for (at, label), one in tests.items() if at == beta}


def means(tests: Tests) -> dict[str, Paired]:
    """Of each row that both settings have, the mean over them, the highest first."""
    by_row = {label: [one for (_, other), one in tests.items() if other == label] for _, label in tests}
    found = {label: mean for label, of in by_row.items() if len(of) > 1 and (mean := over_settings(of)) is not None}
    return dict(sorted(found.items(), key=lambda item: -item[1].difference))


def in_words(label: str) -> str:
    plain = label.removesuffix(TUNED)
    return ROWS.get(plain, plain)
