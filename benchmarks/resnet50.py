#!/usr/bin/env python3
"""Images a second of ResNet-50 at 32x32 inside the federated loop, against plain training loops on the same GPU.

    python benchmarks/resnet50.py [--clients 10] [--samples 5000] [--lanes 5] [--out FILE]

The ceiling is one model with batch 512; the usual way of public scripts is one client after another with batch 64.
Both are eager, bf16, channels-last, with images already on the GPU.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from common import Record, Shelf, noise, parser, run_in_memory, save, show, steady

from fedproc import Experiment
from fedproc.networks import NetworkSpec, build


def plain(batch: int, images: int, width: int, device: torch.device) -> float:
    """Images a second of torch's own loop."""
    network = build(NetworkSpec("resnet50", width, 3, 32, 100, False), 0).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    x = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 100, (batch,), device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = F.cross_entropy(network(x)[1], labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        for _ in range(5):
            step()
        _wait(device)
        began = time.perf_counter()
        steps = max(10, images // batch)
        for _ in range(steps):
            step()
        _wait(device)
    return steps * batch / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    options = parser(__doc__ or "", "benchmark-resnet50.json")
    options.add_argument("--clients", type=int, default=10)
    options.add_argument("--samples", type=int, default=5000, help="of each client")
    options.add_argument("--lanes", nargs="*", default=["auto"], help="clients side by side, one run for each")
    options.add_argument("--width", type=int, default=64)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    library = Shelf(noise(100, given.clients * given.samples))
    found: Record = {}
    for lanes in given.lanes:
        for method in ("fedavg", "fedproc"):
            experiment = Experiment(
                method=method, clients=given.clients, partition="iid", network="resnet50", width=given.width,
                rounds=given.rounds, epochs=1, augment="crop-flip-rotate", lr=0.01, lanes=_number(lanes),
            )  # fmt: skip
            sessions, use = run_in_memory(library, experiment)
            samples = sessions[0].records[-1]["samples"]
            name = f"{method}, {use['executor']}, {use['lanes']} lanes"
            found[name] = {
                "train": samples / steady(sessions, parts=("train",)),
                "whole_round": samples / steady(sessions, parts=("train", "prototypes", "merge", "evaluation")),
                **use,
            }
            torch.cuda.empty_cache()
    for batch in (512, 64):
        found[f"plain loop, batch {batch}"] = {"train": plain(batch, 10000, given.width, device)}
        torch.cuda.empty_cache()
    rows = [
        (name, v["train"], v.get("whole_round", ""), f"{v.get('peak_memory_bytes', 0) / 2**30:.1f}")
        for name, v in found.items()
    ]
    show("ResNet-50 at 32x32, images a second", ["", "training", "whole round", "GiB"], rows)
    save(given.out, {"images_per_second": found})


def _number(lanes: str) -> int | str:
    return lanes if lanes == "auto" else int(lanes)


if __name__ == "__main__":
    main()
