"""Accuracy by epsilon: methods trained privately, with the noise that each epsilon needs, and without noise beside.

    python examples/private.py runs/private                    # CIFAR-10, 1,000 clients, a cohort of 100, 200 rounds
    python examples/private.py runs/small --small              # the embedded images, minutes

The same command continues what was interrupted; what is finished is not run again. It writes accuracy-by-epsilon.svg,
.png and .csv beside the runs.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

import fedproc
from fedproc.methods import written

# one epoch over some 50 images in batches of 10, with steps large enough that a client gets somewhere
TRAINING = {"epochs": 1, "batch_size": 10, "lr": 0.1, "normalize_z": False, "augment": "none", "eval_every": 5}
PRIVACY = {"clip": 0.5, "delta": 1e-5}
FULL = {"data": "cifar10", "clients": 1000, "sample": 0.1, "rounds": 200, "beta": 0.5, "min_size": 5}
SMALL = {"data": "fashion-mini", "clients": 200, "sample": 0.5, "rounds": 30, "beta": 0.5, "min_size": 5}


def variants(methods: list[str], epsilons: list[float]) -> dict[str, dict[str, Any]]:
    """By label: each method with each epsilon, and without noise."""
    found: dict[str, dict[str, Any]] = {}
    for method in methods:
        for epsilon in epsilons:
            found[f"{method}-{epsilon:g}"] = {"method": method, "privacy": {**PRIVACY, "epsilon": epsilon}}
        found[f"{method}-without"] = {"method": method, "privacy": {**PRIVACY, "noise": 0.0}}
    return found


def rows_of(done: Any, methods: list[str]) -> list[dict[str, Any]]:
    """Method, epsilon (None: no noise), noise multiplier and the mean of the final accuracy over seeds."""
    rows = []
    for row in done.rows:
        accuracies = [100 * run.result["final_accuracy"] for run in row.runs]
        if not accuracies:
            continue
        promised = row.runs[0].result["privacy"]
        deviation = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        rows.append(
            {
                "method": row.runs[0].method,
                "epsilon": promised["epsilon"],
                "noise": promised["noise"],
                "accuracy": statistics.fmean(accuracies),
                "deviation": deviation,
                "seeds": len(accuracies),
            }
        )
    return sorted(rows, key=lambda r: (methods.index(r["method"]), r["epsilon"] or float("inf")))


def draw(rows: list[dict[str, Any]], title: str) -> Figure:
    matplotlib.use("Agg")
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    panel = figure.subplots()
    for number, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        shade = f"C{number}"
        noisy = [row for row in rows if row["method"] == method and row["epsilon"] is not None]
        where, found = [row["epsilon"] for row in noisy], [row["accuracy"] for row in noisy]
        spread = [row["deviation"] for row in noisy]
        panel.errorbar(where, found, spread, marker="o", capsize=3, color=shade, label=written(method))
        for row in (row for row in rows if row["method"] == method and row["epsilon"] is None):
            panel.axhline(row["accuracy"], color=shade, linestyle="--", label=f"{written(method)}, no noise")
    panel.set_xscale("log", base=2)
    ticks = sorted({round(row["epsilon"], 2) for row in rows if row["epsilon"] is not None})
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.set_xlabel("epsilon of one client, all rounds together")
    panel.set_ylabel("test accuracy, %")
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.25)
    panel.legend(fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the runs and the picture")
    parser.add_argument("--small", action="store_true", help="the embedded images instead of CIFAR-10")
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedproc"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[2.0, 4.0, 8.0, 16.0, 32.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--data-dir", type=Path, help="folder with the official CIFAR-10 files")
    parser.add_argument("--workers", default="1", help="processes that share the runs, a number or auto")
    given = parser.parse_args()
    setting: dict[str, Any] = {**TRAINING, **(SMALL if given.small else FULL)}
    setting["rounds"] = given.rounds or setting["rounds"]
    setting |= {} if given.data_dir is None else {"data_dir": given.data_dir}
    asked = variants(given.methods, given.epsilons)
    workers = given.workers if given.workers == "auto" else int(given.workers)
    done = fedproc.compare([], given.seeds, given.out, variants=asked, workers=workers, **setting)
    rows = rows_of(done, given.methods)
    with (given.out / "accuracy-by-epsilon.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    cohort = round(setting["sample"] * setting["clients"])
    about = f"{setting['clients']:,} clients, expected cohort {cohort}, {setting['rounds']} rounds"
    figure = draw(rows, f"{setting['data']}: {about}, delta {PRIVACY['delta']:g}")
    for ending in ("svg", "png"):
        figure.savefig(given.out / f"accuracy-by-epsilon.{ending}", dpi=150)
    for row in rows:
        epsilon = "no noise" if row["epsilon"] is None else f"epsilon {row['epsilon']:.2f}"
        print(f"{row['method']:10} {epsilon:14} noise {row['noise']:.3f}  {row['accuracy']:.2f} %")
    print(f"written to {given.out / 'accuracy-by-epsilon.svg'}")


if __name__ == "__main__":
    main()
