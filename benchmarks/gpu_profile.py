#!/usr/bin/env python3
"""Where the time of a training step goes on a GPU: its kernels by what they are for.

python benchmarks/gpu_profile.py [--method fedproc] [--network simple-cnn] [--clients 10] [--lanes auto] [--out FILE]
"""

from __future__ import annotations

import torch
from common import Record, Shelf, noise, parser, run_in_memory, save, show
from torch.profiler import ProfilerActivity, profile

from fedproc import Experiment

SHOWN = 25


def main() -> None:
    options = parser(__doc__ or "", "benchmark-gpu-profile.json")
    options.add_argument("--method", default="fedproc")
    options.add_argument("--network", default="simple-cnn")
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--samples", type=int, default=50_000)
    options.add_argument("--lanes", default="auto")
    given = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    library = Shelf(noise(10, given.samples))
    lanes = given.lanes if given.lanes == "auto" else int(given.lanes)
    experiment = Experiment(
        method=given.method, network=given.network, clients=given.clients, rounds=1, epochs=1, augment="crop-flip",
        lanes=lanes, lr=0.01,
    )  # fmt: skip
    run_in_memory(library, experiment)  # compiles
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        _, use = run_in_memory(library, experiment)
    found = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in found)
    kernels: list[Record] = [
        {
            "name": event.key,
            "share": event.self_device_time_total / total,
            "calls": event.count,
            "microseconds": event.self_device_time_total / event.count,
        }
        for event in found
    ]
    rows = [
        (k["name"][:60], f"{100 * k['share']:.1f} %", k["calls"], float(k["microseconds"])) for k in kernels[:SHOWN]
    ]
    show(f"{given.method}, {given.network}: one round", ["kernel", "share", "calls", "us a call"], rows)
    save(given.out, {"gpu_seconds": total / 1e6, "use": use, "kernels": kernels})


if __name__ == "__main__":
    main()
