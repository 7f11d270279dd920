#!/usr/bin/env python3
"""Microseconds of a captured training step of the simple CNN on a GPU, by how many clients train side by side.

    python benchmarks/gpu_steps.py [--methods fedproc] [--lanes 10 40 120] [--out FILE]

Each number of lanes trains as many clients of 1,300 random images by each method, so that all lanes are at work in
every step; the first rounds, in which kernels are compiled, do not count.
"""

from __future__ import annotations

import time

import torch
from common import Record, Shelf, noise, parser, run_in_memory, save, show

from fedproc import Experiment
from fedproc.lanes.captured import CapturedLanes

IMAGES, BATCH, ROUNDS, EPOCHS = 1300, 64, 4, 3
WARM = 2  # calls of so many steps that do not count


def microseconds(method: str, lanes: int) -> float:
    """Of a step, the host waiting for the GPU before and after each series of steps."""
    found: list[tuple[int, float]] = []
    plain = CapturedLanes.run

    def timed(self: CapturedLanes, steps: int) -> None:
        torch.cuda.synchronize()
        began = time.perf_counter()
        plain(self, steps)
        torch.cuda.synchronize()
        found.append((steps, time.perf_counter() - began))

    experiment = Experiment(
        method=method, clients=lanes, beta=1e6, rounds=ROUNDS, epochs=EPOCHS, batch_size=BATCH, augment="crop-flip",
        lr=0.01, executor="stacked", lanes=lanes,
    )  # fmt: skip
    CapturedLanes.run = timed  # type: ignore[method-assign]
    try:
        run_in_memory(Shelf(noise(10, lanes * IMAGES)), experiment)
    finally:
        CapturedLanes.run = plain  # type: ignore[method-assign]
    some = [each for each in found if each[0] >= IMAGES // BATCH // 2][WARM:]
    return 1e6 * sum(seconds for _, seconds in some) / sum(steps for steps, _ in some)


def main() -> None:
    options = parser(__doc__ or "", "benchmark-gpu-steps.json")
    options.add_argument("--methods", nargs="*", default=["fedproc"])
    options.add_argument("--lanes", type=int, nargs="*", default=[10, 40, 120])
    given = options.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU here")
    rows: list[Record] = []
    for lanes in given.lanes:
        for method in given.methods:
            spent = microseconds(method, lanes)
            samples = 1e6 * lanes * BATCH / spent
            rows.append({"method": method, "lanes": lanes, "microseconds": spent, "samples_per_second": samples})
            torch.cuda.empty_cache()
    first = {row["lanes"]: row["microseconds"] for row in reversed(rows)}  # of the first method
    shown = [
        (
            row["method"], row["lanes"], float(row["microseconds"]), f"{row['samples_per_second'] / 1e6:.2f} M",
            f"{row['microseconds'] / first[row['lanes']]:.2f}",
        )
        for row in rows
    ]  # fmt: skip
    heads = ["method", "lanes", "us per step", "samples per second", "times the first"]
    show(f"simple CNN, batches of {BATCH}", heads, shown)
    save(given.out, {"steps": rows})


if __name__ == "__main__":
    main()
