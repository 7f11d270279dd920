#!/usr/bin/env python3
"""Time and memory of a round with the same cohort out of more and more clients.

    python benchmarks/population.py [--populations 10 100 1000 10000] [--each 50] [--repeats 3] [--out FILE]

Every client holds as many samples (iid), and 10 of them take part in a round, whatever the population. A round this
small is the host's work alone and noisy: every job is run several times, in turn, and the fastest counts.
"""

from __future__ import annotations

import gc
import resource
import time

import torch
from common import Record, Shelf, noise, parser, run_in_memory, save, show, steady

from fedproc import Experiment
from fedproc.simulation.preparation import Library


def main() -> None:
    options = parser(__doc__ or "", "benchmark-population.json")
    options.add_argument("--populations", type=int, nargs="*", default=[10, 100, 1000, 10_000])
    options.add_argument("--each", type=int, default=50, help="samples of a client")
    options.add_argument("--cohort", type=int, default=10)
    options.add_argument("--rounds", type=int, default=60)
    options.add_argument("--methods", nargs="*", default=["fedavg", "fedproc", "scaffold"])
    options.add_argument("--repeats", type=int, default=3, help="of every job, in turn; the fastest counts")
    given = options.parse_args()
    found: dict[str, Record] = {}
    for _ in range(given.repeats):
        for method in given.methods:
            for population in given.populations:
                experiment = Experiment(
                    method=method, clients=population, partition="iid", sample=given.cohort / population,
                    rounds=given.rounds, epochs=10, batch_size=10, augment="crop-flip", eval_every=given.rounds,
                )  # fmt: skip
                seen = _measure(experiment, Shelf(noise(10, population * given.each)))
                before = found.get(f"{method}, {population:,} clients", {"all_seconds_a_round": []})
                seen["all_seconds_a_round"] = [*before["all_seconds_a_round"], seen["seconds_a_round"]]
                seen["seconds_a_round"] = min(seen["all_seconds_a_round"])
                found[f"{method}, {population:,} clients"] = seen
    rows = []
    for method in given.methods:
        first = found[f"{method}, {given.populations[0]:,} clients"]["seconds_a_round"]
        for population in given.populations:
            name = f"{method}, {population:,} clients"
            v = found[name]
            ratio = v["seconds_a_round"] / first
            memory = (v["peak_gpu_mib"], v["peak_host_mib"])
            rows.append((name, 1000 * v["seconds_a_round"], ratio, v["seconds_in_all"], *memory))
    show("the same cohort out of more clients", ["", "ms a round", "ratio", "s in all", "GPU MiB", "host MiB"], rows)
    save(given.out, {"populations": found})


def _measure(experiment: Experiment, library: Library) -> Record:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    began = time.perf_counter()
    sessions, use = run_in_memory(library, experiment)
    return {
        "seconds_a_round": steady(sessions, skip=3),
        "seconds_in_all": time.perf_counter() - began,
        "peak_gpu_mib": use.get("peak_memory_bytes", 0) / 2**20,
        "peak_host_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    main()
