#!/usr/bin/env python3
"""The simple CNN's two convolutions with relu and pooling on one core: torch, torch channels-last, and ours in C.

    python benchmarks/cpu_kernels.py [--out FILE]

Microseconds a sample, forwards and backwards, the median of several passes taken in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F
from common import Record, parser, save, show
from torch import Tensor

from fedproc.kernels import cpu

LAYERS = {"3 to 6 channels, 32x32": (3, 32, 6, False), "6 to 16 channels, 14x14": (6, 14, 16, True)}


def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, w, b)), 2)


def channels_last(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return plain(x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last), b)


WAYS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "torch": plain,
    "torch, channels-last": channels_last,
    "ours": cpu.conv_relu_pool,
}


def main() -> None:
    given = parser(__doc__ or "", "benchmark-cpu-kernels.json").parse_args()
    if (reason := cpu.missing()) is not None:
        raise SystemExit(f"no C kernels here: {reason}")
    torch.set_num_threads(1)
    found: Record = {}
    for name, (channels, side, out, wanted) in LAYERS.items():
        for batch in (10, 64):
            x = torch.randn(batch, channels, side, side).requires_grad_(wanted)
            w, b = (0.1 * torch.randn(out, channels, 5, 5)).requires_grad_(), torch.zeros(out).requires_grad_()
            leaves = [x, w, b] if wanted else [w, b]
            spent: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(15):
                for way, layer in WAYS.items():
                    began = time.perf_counter()
                    for _ in range(640 // batch):
                        torch.autograd.grad(layer(x, w, b).sum(), leaves)
                    spent[way].append((time.perf_counter() - began) / (640 // batch * batch) * 1e6)
            found[f"{name}, batch {batch}"] = {way: median(times) for way, times in spent.items()}
    rows = [(name, *times.values(), times["torch"] / times["ours"]) for name, times in found.items()]
    show("microseconds a sample, one core", ["", *WAYS, "torch over ours"], rows)
    save(given.out, {"microseconds_a_sample": found})


if __name__ == "__main__":
    main()
