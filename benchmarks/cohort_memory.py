#!/usr/bin/env python3
"""Memory of a round by the number of clients that take part in it: sums need no list of their weights.

    python benchmarks/cohort_memory.py [--cohorts 10 100 1000] [--methods fedavg fedproc scaffold] [--out FILE]

Every client holds as many samples (iid) and takes part in every round. Each number is that of a process of its own:
the most memory it ever held, less what one with 10 clients held.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import torch
from common import Record, Shelf, noise, parser, run_in_memory, save, show

from fedproc import Experiment


def measure(method: str, clients: int, samples: int, rounds: int) -> Record:
    experiment = Experiment(
        method=method, clients=clients, partition="iid", rounds=rounds, epochs=1, batch_size=10, augment="none",
        eval_every=rounds, min_size=1,
    )  # fmt: skip
    sessions, use = run_in_memory(Shelf(noise(10, samples)), experiment)
    return {
        "host_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "gpu_mib": use.get("peak_memory_bytes", 0) / 2**20,
        "parameters_mib": sessions[0].state.weights.params.numel() * 4 / 2**20,
    }


def main() -> None:
    options = parser(__doc__ or "", "benchmark-cohort-memory.json")
    options.add_argument("--cohorts", type=int, nargs="*", default=[10, 100, 1000])
    options.add_argument("--methods", nargs="*", default=["fedavg", "fedproc", "scaffold"])
    options.add_argument("--samples", type=int, default=20_000, help="of all clients together")
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--one", nargs=2, metavar=("METHOD", "COHORT"), help="measure this alone, in this process")
    given = options.parse_args()
    if given.one:
        torch.set_num_threads(1)
        print(json.dumps(measure(given.one[0], int(given.one[1]), given.samples, given.rounds)))
        return
    found: dict[str, Record] = {}
    rows = []
    for method in given.methods:
        for cohort in given.cohorts:
            words = [sys.executable, __file__, "--one", method, str(cohort), "--samples", str(given.samples)]
            done = subprocess.run([*words, "--rounds", str(given.rounds)], check=True, capture_output=True, text=True)
            seen = found[f"{method}, {cohort:,} clients"] = json.loads(done.stdout.splitlines()[-1])
            first = found[f"{method}, {given.cohorts[0]:,} clients"]
            more = seen["host_mib"] - first["host_mib"]
            models = seen["parameters_mib"] * cohort
            rows.append((f"{method}, {cohort:,} clients", seen["host_mib"], more, models, seen["gpu_mib"]))
    heads = ["", "host MiB", "more than the first", "weights of all clients, MiB", "GPU MiB"]
    show("memory by cohort", heads, rows)
    save(given.out, {"cohorts": found})


if __name__ == "__main__":
    main()
