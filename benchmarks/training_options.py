#!/usr/bin/env python3
"""Seconds of training a round with each option of training over those without, taken in turn in one process.

    python benchmarks/training_options.py [--networks simple-cnn resnet18] [--samples 2000 400] [--out FILE]

FedAvg, batches of 64, 32x32 colour images; a ResNet-18 is a quarter as wide as usual. The fastest of several passes.
bf16 is timed where the device has it for the network.
"""

from __future__ import annotations

import torch
from common import Record, Shelf, noise, parser, run_in_memory, save, show

from fedproc import Experiment, InputError
from fedproc.assembly import resolve_device
from fedproc.lanes import resolve_precision

WAYS: dict[str, Record] = {
    "sgd": {},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw"},
    "class weights": {"class_weights": "balanced"},
    "crop-flip": {"augment": "crop-flip"},
    "flip,rotate": {"augment": "flip,rotate"},
    "colour": {"augment": "colour"},
    "bf16": {"precision": "bf16"},
}
PASSES = 3


def main() -> None:
    options = parser(__doc__ or "", "benchmark-training-options.json")
    options.add_argument("--networks", nargs="*", default=["simple-cnn", "resnet18"])
    options.add_argument("--samples", type=int, nargs="*", default=[2000, 400], help="one number for each network")
    given = options.parse_args()
    ways = dict(WAYS)
    try:
        resolve_precision("bf16", resolve_device("auto"), "streamed" if torch.cuda.is_available() else "serial")
    except InputError:
        del ways["bf16"]
    found: dict[str, Record] = {}
    for network, samples in zip(given.networks, given.samples, strict=True):
        library = Shelf(noise(10, samples))
        base: Record = {"method": "fedavg", "clients": 2, "partition": "iid", "network": network, "width": 16}
        base |= {"rounds": 3, "epochs": 1, "lr": 0.001, "eval_every": 3}
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(PASSES):
            for way, more in ways.items():
                sessions, _ = run_in_memory(library, Experiment(**{**base, **more}))
                spent[way] += [record["seconds"]["train"] for record in sessions[0].records[1:]]
        found[network] = {way: min(times) for way, times in spent.items()}
    rows = [
        (way, *(cell for name in given.networks for cell in (found[name][way], found[name][way] / found[name]["sgd"])))
        for way in ways
    ]
    show("seconds of training a round", ["", *(c for n in given.networks for c in (n, "over sgd"))], rows)
    save(given.out, {"seconds_a_round": found})


if __name__ == "__main__":
    main()
