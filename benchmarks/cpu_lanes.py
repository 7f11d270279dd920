#!/usr/bin/env python3
"""How to use the cores of a CPU for clients side by side: torch threads, Python threads, or processes.

    python benchmarks/cpu_lanes.py [STEPS]

Trains the paper's simple CNN (batch 64, 32x32 colour) and prints samples a second of each way, twice, in one run.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time

import torch
import torch.nn.functional as F

from fedproc.lanes import cores
from fedproc.networks import NetworkSpec, build

BATCH = 64


def work(steps: int, threads: int) -> None:
    torch.set_num_threads(threads)
    network = build(NetworkSpec("simple-cnn", 64, 3, 32, 10, False), 0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, 32, 32), torch.randint(0, 10, (BATCH,))
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(network(images)[1], labels).backward()
        optimizer.step()


def rate(count: int, start: float, steps: int) -> str:
    return f"{count * steps * BATCH / (time.perf_counter() - start):8,.0f}"


def main(steps: int) -> None:
    n = cores()
    work(20, n)
    print(f"samples a second, {n} cores, torch {torch.__version__}, {steps} steps of {BATCH}")
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        start = time.perf_counter()
        work(steps, n)
        print(f"one client, {n} torch threads   {rate(1, start, steps)}")
        lanes = [threading.Thread(target=work, args=(steps, 1)) for _ in range(n)]
        start = time.perf_counter()
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        print(f"{n} clients, {n} Python threads  {rate(n, start, steps)}")
        spent = []
        for length in (steps, 3 * steps):  # the difference leaves the start of the processes out
            processes = [spawn.Process(target=work, args=(length, 1)) for _ in range(n)]
            start = time.perf_counter()
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            spent.append(time.perf_counter() - start)
        net = n * 2 * steps * BATCH / (spent[1] - spent[0])
        starting = spent[0] - (spent[1] - spent[0]) / 2
        print(f"{n} clients, {n} processes       {net:8,.0f}   (and {starting:.1f} s to start)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
