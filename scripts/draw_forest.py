#!/usr/bin/env python3
"""Draw docs/results/forest.svg and .png: FedProc's final accuracy minus FedAvg's in every setting that is kept.

python scripts/draw_forest.py
"""

from __future__ import annotations

from pathlib import Path

from fedproc.comparison.compare import rows_in
from fedproc.figures.forest import draw_forest
from fedproc.figures.style import lines
from fedproc.statistics import Paired, of_differences, over_settings

RESULTS = Path(__file__).parent.parent / "docs" / "results"
AS_PRINTED = "CIFAR-10, as the paper has it"
TUNED = "CIFAR-10, both tuned"
SHORT = "CIFAR-100, 20 rounds, one seed"
MEAN = "mean of these eight"
SETTINGS = {  # what a setting is called, its runs, and the rows that are compared
    AS_PRINTED: {
        "10 clients, beta 0.5, E = 10": ("cifar10-beta0.5/runs", ""),
        "beta 0.1": ("cifar10-beta0.1/runs", ""),
        "beta 5": ("cifar10-beta5/runs", ""),
        "E = 1": ("cifar10-epochs1/runs", ""),
        "E = 5": ("cifar10-epochs5/runs", ""),
        "E = 20": ("cifar10-epochs20/runs", ""),
        "50 clients": ("cifar10-clients50/runs", ""),
        "100 clients, 20 a round": ("cifar10-clients100/runs", ""),
    },
    TUNED: {
        "beta 0.5": ("best/runs", "-best"),
        "beta 0.1 (leaderboard)": ("leaderboard/cifar10-beta0.1/runs", "-tuned"),
    },
    SHORT: {
        "learning rate 0.01": ("cifar100-lr0.01/runs", ""),
        "learning rate 0.1": ("cifar100-lr0.1/runs", ""),
    },
}


def difference(folder: Path, suffix: str) -> Paired:
    """FedProc's final accuracy minus FedAvg's, seed by seed."""
    rows = rows_in(folder)
    finals = [
        {run.seed: float(run.result["final_accuracy"]) for run in rows[f"{method}{suffix}"]}
        for method in ("fedproc", "fedavg")
    ]
    by_seed = {seed: value - finals[1][seed] for seed, value in sorted(finals[0].items()) if seed in finals[1]}
    found = of_differences(by_seed)
    return found or Paired(tuple(by_seed), *by_seed.values(), None, None, 1.0, 1.0, values=tuple(by_seed.values()))


def groups() -> dict[str, dict[str, Paired]]:
    return {
        head: {name: difference(RESULTS / folder, suffix) for name, (folder, suffix) in settings.items()}
        for head, settings in SETTINGS.items()
    }


def mean(found: dict[str, dict[str, Paired]]) -> Paired:
    over = over_settings(list(found[AS_PRINTED].values()))
    assert over is not None
    return over


def main() -> None:
    found = groups()
    shade = lines(["fedproc"])["fedproc"].colour
    made = draw_forest(found, {MEAN: mean(found)}, "FedProc", "FedAvg", shade)
    for kind in ("svg", "png"):
        made.save(RESULTS / f"forest.{kind}", kind)
        print(RESULTS / f"forest.{kind}")


if __name__ == "__main__":
    main()
