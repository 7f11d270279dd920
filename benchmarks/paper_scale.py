#!/usr/bin/env python3
"""The paper's full CIFAR-10 experiment (10 clients, 100 rounds, 10 epochs): FedProc alone, and a sweep of 18 runs.

    python benchmarks/paper_scale.py --data-dir DIR [--parts alone sweep] [--folder runs] [--out FILE]

`alone` is the wall clock of `fedproc run` as a person starts it, all included. The sweep is `fedproc compare` over six
methods and three seeds; it continues where it was stopped, and its seconds are those of all its starts together.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from common import Record, parser, save, show

METHODS = ["fedavg", "fedprox", "scaffold", "moon", "fednova", "fedproc"]


def timed(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "fedproc", *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def laid_out(folder: Path) -> Record:
    found = json.loads((folder / "environment.json").read_text())
    return {name: found.get(name) for name in ("executor", "lanes", "precision", "lane_use", "peak_memory_bytes")}


def result(folder: Path) -> Record:
    found: Record = json.loads((folder / "result.json").read_text())
    return found


def main() -> None:
    options = parser(__doc__ or "", "benchmark-paper-scale.json")
    options.add_argument("--data-dir", required=True)
    options.add_argument("--folder", type=Path, default=Path("runs/paper-scale"))
    options.add_argument("--parts", nargs="*", default=["alone", "sweep"], choices=["alone", "sweep"])
    options.add_argument("--rounds", type=int, default=100)
    options.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    given = options.parse_args()
    common = ["--data", "cifar10", "--data-dir", given.data_dir, "--rounds", str(given.rounds)]
    found: Record = {}
    rows = []
    if "alone" in given.parts:
        folder = given.folder / "alone"
        wall = timed(["run", "--method", "fedproc", *common, "--out", str(folder), "--fresh"])
        found["alone"] = {"wall_seconds": wall, "accuracy": result(folder)["final_accuracy"], **laid_out(folder)}
        rows.append(("FedProc alone", wall, _share(found["alone"]), _memory(found["alone"])))
    if "sweep" in given.parts:
        folder = given.folder / "sweep"
        seeds = [str(seed) for seed in given.seeds]
        wall = timed(["compare", "--methods", *METHODS, "--seeds", *seeds, *common, "--out", str(folder)])
        runs = {f"{m}/seed-{s}": result(folder / m / f"seed-{s}") for m in METHODS for s in seeds}
        seconds = {name: run["seconds"] for name, run in runs.items()}
        first = laid_out(folder / METHODS[0] / f"seed-{seeds[0]}")
        total = sum(seconds.values())
        found["sweep"] = {
            "runs": len(runs), "wall_seconds_of_this_start": wall, "seconds_of_all_starts": total,
            "seconds_a_run": total / len(runs), "seconds": seconds, **first,
            "accuracy": {name: run["final_accuracy"] for name, run in runs.items()},
        }  # fmt: skip
        rows.append((f"a run of the {len(runs)} together", total / len(runs), _share(first), _memory(first)))
    show("CIFAR-10 at the paper's scale", ["", "seconds", "lane-steps at work", "GiB"], rows)
    save(given.out, {"rounds": given.rounds, **found})


def _share(found: Record) -> str:
    return "" if found["lane_use"] is None else f"{100 * found['lane_use']:.0f} %"


def _memory(found: Record) -> str:
    return "" if found["peak_memory_bytes"] is None else f"{found['peak_memory_bytes'] / 2**30:.1f}"


if __name__ == "__main__":
    main()
