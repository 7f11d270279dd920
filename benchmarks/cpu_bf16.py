#!/usr/bin/env python3
"""A training step's forward and backward pass on one core, in float32 and with products in bf16, channels last.

    python benchmarks/cpu_bf16.py [--out FILE]

Milliseconds a batch of 32x32 colour images, the fastest of several, taken in turn.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from common import Record, parser, save, show

from fedproc.kernels import cpu
from fedproc.networks import NetworkSpec, build

CASES = (("simple-cnn", 64, 64, 20), ("resnet18", 16, 64, 4), ("resnet18", 64, 32, 2), ("resnet50", 64, 16, 2))


def main() -> None:
    given = parser(__doc__ or "", "benchmark-cpu-bf16.json").parse_args()
    if (reason := cpu.without_bf16()) is not None:
        raise SystemExit(f"bf16 does not pay here: {reason}")
    torch.set_num_threads(1)
    found: Record = {}
    for name, width, batch, times in CASES:
        network = build(NetworkSpec(name, width, 3, 32, 10, False, torch.float32, "batch"), 0)
        params, labels = list(network.parameters()), torch.arange(batch) % 10
        images = torch.randn(batch, 3, 32, 32)
        spent: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(2 * times):
            for short, seconds in spent.items():
                began = time.perf_counter()
                seen = images.to(memory_format=torch.channels_last) if short else images
                with torch.autocast("cpu", torch.bfloat16, enabled=short):
                    _, logits = network(seen, None)
                torch.autograd.grad(F.cross_entropy(logits.float(), labels), params)
                seconds.append(1e3 * (time.perf_counter() - began))
        found[f"{name}, width {width}, batch {batch}"] = {"float32": min(spent[False]), "bf16": min(spent[True])}
    rows = [(name, *each.values(), each["float32"] / each["bf16"]) for name, each in found.items()]
    show("milliseconds a batch, one core", ["", "float32", "bf16", "float32 over bf16"], rows)
    save(given.out, {"milliseconds_a_batch": found})


if __name__ == "__main__":
    main()
