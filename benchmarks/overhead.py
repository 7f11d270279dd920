#!/usr/bin/env python3
"""Seconds a round of every method over FedAvg's, each timed alone, on the simple CNN and on ResNet-50.

    python benchmarks/overhead.py [--networks simple-cnn resnet50] [--samples 50000 5000] [--epochs 10] [--out FILE]

Diagnostics (evaluation, and prototypes of methods that do not use any) are left out: a round is training, the
method's own prototypes and the merge. ResNet-50 trains on fewer samples, as many epochs. Two-stage is its first stage.
"""

from __future__ import annotations

import torch
from common import Record, Shelf, noise, parser, run_in_memory, save, show, steady

from fedproc import Experiment
from fedproc.methods import METHODS

OPTIONS: dict[str, Record] = {"two-stage": {"split": 1.0}}
ALONE = ("solo", "central")  # no federated rounds to compare


def main() -> None:
    options = parser(__doc__ or "", "benchmark-overhead.json")
    options.add_argument("--networks", nargs="*", default=["simple-cnn", "resnet50"])
    options.add_argument("--methods", nargs="*", default=[name for name in METHODS if name not in ALONE])
    options.add_argument("--samples", type=int, nargs="*", default=[50_000, 5_000], help="one number for each network")
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--width", type=int, default=64, help="of ResNet-50")
    given = options.parse_args()
    found: dict[str, Record] = {}
    for network, samples in zip(given.networks, given.samples, strict=True):
        small = network == "simple-cnn"
        library = Shelf(noise(10 if small else 100, samples))
        seconds: Record = {}
        for method in given.methods:
            experiment = Experiment(
                method=method, clients=10, network=network, width=given.width, augment="crop-flip",
                rounds=given.rounds if small else max(3, given.rounds // 2), epochs=given.epochs, lr=0.01,
                **{method: OPTIONS.get(method, {})},
            )  # fmt: skip
            sessions, _ = run_in_memory(library, experiment)
            seconds[method] = steady(sessions)
            torch.cuda.empty_cache()
        found[network] = seconds
    rows = [
        (method, *(cell for n in given.networks for cell in (found[n][method], found[n][method] / found[n]["fedavg"])))
        for method in given.methods
    ]
    show("seconds per round", ["method", *(c for n in given.networks for c in (n, "over FedAvg"))], rows)
    save(given.out, {"seconds_a_round": found})


if __name__ == "__main__":
    main()
