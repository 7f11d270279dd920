#!/usr/bin/env python3
"""Seconds per round of methods over FedAvg's on a CPU, in the setting of `make run`, in turn within one process.

    python benchmarks/cpu_rounds.py [--methods fedproc] [--repeats 7] [--rounds 3] [--lanes 2] [--out FILE]

A round is training, the method's own prototypes and the merge; evaluation is left out. Each repeat trains FedAvg and
then the methods for so many rounds, of which the first warms up; its ratio is that of the fastest rounds, which other
work on the machine disturbs least. What counts is the median of the repeats' ratios.
"""

from __future__ import annotations

import os
from statistics import median

from common import Record, parser, run_in_memory, save, show

from fedproc import Experiment
from fedproc.simulation.preparation import Library

PARTS = ("train", "prototypes", "merge")


def main() -> None:
    options = parser(__doc__ or "", "benchmark-cpu-rounds.json")
    options.add_argument("--methods", nargs="*", default=["fedproc"])
    options.add_argument("--repeats", type=int, default=7)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--lanes", type=int, default=2)
    given = options.parse_args()
    library, load = Library(), os.getloadavg()[0]
    setting: Record = {"data": "fashion-mini", "clients": 10, "beta": 0.5, "epochs": 2, "batch_size": 32}
    setting |= {"device": "cpu", "lanes": given.lanes, "rounds": given.rounds, "eval_every": given.rounds}
    fastest: dict[str, list[float]] = {method: [] for method in ("fedavg", *given.methods)}
    for _ in range(given.repeats):
        for method, seconds in fastest.items():
            sessions, _ = run_in_memory(library, Experiment(method=method, **setting))
            spent = [sum(record["seconds"][part] for part in PARTS) for record in sessions[0].records]
            seconds.append(min(spent[1:]))
    ratios = {
        method: sorted(own / base for own, base in zip(seconds, fastest["fedavg"], strict=True))
        for method, seconds in fastest.items()
    }
    rows = [
        (method, min(seconds), median(ratios[method]), f"{ratios[method][0]:.2f} to {ratios[method][-1]:.2f}",
         min(seconds) / min(fastest["fedavg"]))
        for method, seconds in fastest.items()
    ]  # fmt: skip
    columns = ["method", "fastest round, s", "over FedAvg, median", "spread", "of the fastest rounds"]
    show(f"{given.repeats} times, {given.lanes} lanes, load average before {load:.1f}", columns, rows)
    save(given.out, {"fastest_rounds": fastest, "over_fedavg": ratios, "load_before": load})


if __name__ == "__main__":
    main()
