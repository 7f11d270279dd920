"""Seconds and memory that a federation costs beside training: sites answer at once with what they were sent.

    python benchmarks/federation.py --sites 2 4 8 --network simple-cnn --rounds 12 --out overhead.json

Every process is a real one on this machine: the server, and for each site NVFlare's client and its job process. The
trainer alone is replaced, by one that answers training with the weights that it was sent. A round is one exchange of
training and one of evaluation, and what the server does in between (merging, a checkpoint); the median is over all
rounds but the first. It is taken from one line of the server's metrics.jsonl to the next; `exchanges` is what the
server itself counts, which leaves the checkpoint out. benchmarks/federation_flower.py does the same with Flower.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch

from fedproc import __version__
from fedproc.experiment import Experiment
from fedproc.federate import kits
from fedproc.federate.driver import Options
from fedproc.federate.joining import Joined, Ready, Seen, kind_of, tell
from fedproc.federate.lifeline import end_with_standard_input
from fedproc.federate.session import Session
from fedproc.federate.supervisor import Supervisor
from fedproc.federate.trainer import serve
from fedproc.protocol import codec
from fedproc.protocol.codec import Message
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Reply

CLASSES, SIDE, CHANNELS, IMAGES = 10, 32, 3, 1000


def echo(message: Message) -> Message:
    """A site that answers at once."""
    match kind_of(message):
        case "invitation":
            names = [f"class-{k}" for k in range(CLASSES)]
            return tell(Joined(version=__version__, classes=names, channels=CHANNELS, side=SIDE))
        case "look":
            counts = [IMAGES // CLASSES] * CLASSES
            pixels = IMAGES * SIDE * SIDE
            return tell(Seen(sums=[100 * pixels] * 3, squares=[12_000 * pixels] * 3, pixels=pixels, counts=counts))
        case "agreed":
            return tell(Ready(samples=IMAGES))
    task = codec.decode_task(message)
    tensors: dict[str, torch.Tensor] = {}
    for name, (shape, dtype) in task.expects.tensors.items():
        same = task.payload.tensors.get(name)
        tensors[name] = same if same is not None and tuple(same.shape) == shape else torch.zeros(shape, dtype=dtype)
    if task.kind is Kind.EVALUATE:
        tensors["confusion"] = torch.eye(CLASSES, dtype=torch.int64) * (IMAGES // CLASSES)
    if "class_counts" in tensors:
        tensors["class_counts"] = torch.full((CLASSES,), IMAGES // CLASSES)
    counts = {name: count if count is not None else IMAGES for name, count in task.expects.counts.items()}
    return codec.encode_reply(Reply(Payload(tensors, counts)))


class Quiet:
    def say(self, text: str) -> None: ...

    def show(self, status: dict[str, Any]) -> None: ...


def measure(sites: int, network: str, rounds: int) -> dict[str, Any]:
    names = [f"s{number}" for number in range(sites)]
    with tempfile.TemporaryDirectory(prefix="fp-bench-") as place:
        home = Path(place)
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        kits.init(home / "kits", "localhost", port, names)
        started: list[subprocess.Popen[bytes]] = []
        try:
            _start(started, home, ["-m", "fedproc", "federate", "server", str(home / "kits/server")], {})
            for name in names:
                address = {"FEDPROC_TRAINER": str(home / name)}
                _start(started, home, [__file__, "--echo", str(home / name)], {})
                kit = str(home / "kits" / name)
                _start(started, home, ["-m", "fedproc.federate.node", "site", kit, "--name", name], address)
            return _measured(home, names, network, rounds)
        finally:
            for process in started:
                for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
                    child.kill()
                process.kill()
                process.wait(10)


def _start(started: list[subprocess.Popen[bytes]], home: Path, words: list[str], more: dict[str, str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **more}
    with (home / f"process-{len(started)}.log").open("wb") as log:
        command = [sys.executable, *words]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment))


def _measured(home: Path, names: list[str], network: str, rounds: int) -> dict[str, Any]:
    admin = kits.open_kit(home / "kits/admin", "admin")
    _until(lambda: set(names) <= _connected(admin))
    experiment = Experiment(
        method="fedavg", data="federation", network=network, rounds=rounds, epochs=1, lr=0.01, checkpoint_every=1,
        normalize="measured", smallest_class=5, eval_every=1,
    )  # fmt: skip
    options = Options(min_sites=len(names), timeout=300, join_timeout=300, alone=False)
    peaks = {"server job": 0, "site job": 0, "server": 0, "site": 0}
    over = threading.Event()
    ends: list[float] = []
    watches = [
        threading.Thread(target=_memory, args=(peaks, over)),
        threading.Thread(target=_rounds, args=(home / "kits/server/runs", ends, over)),
    ]
    for watch in watches:
        watch.start()
    loads = [os.getloadavg()[0]]
    began = time.monotonic()
    try:
        Supervisor(admin, experiment, options, home / "out", Quiet(), lambda: None).run()
    finally:
        total = time.monotonic() - began
        over.set()
        for watch in watches:
            watch.join()
    loads.append(os.getloadavg()[0])
    if len(ends) != rounds:
        raise SystemExit(f"{len(ends)} rounds were seen, expected {rounds}")
    walls = [after - before for before, after in pairwise(ends)]
    exchanges = [sum(line["seconds"].values()) for line in _lines(home / "out/metrics.jsonl")][1:]
    size = (home / "out/model.safetensors").stat().st_size
    return {
        "sites": len(names), "network": network, "model_mb": round(size / 1e6, 2), "rounds": rounds,
        "seconds_per_round": round(statistics.median(walls), 3), "least": round(min(walls), 3),
        "most": round(max(walls), 3), "exchanges": round(statistics.median(exchanges), 3),
        "whole_command": round(total, 1), "fixed": round(total - sum(walls), 1),
        "memory_mb": {name: round(peak / 1e6) for name, peak in peaks.items()},
        "load": [round(load, 1) for load in loads],
    }  # fmt: skip


def _memory(peaks: dict[str, int], over: threading.Event) -> None:
    """The largest resident sizes of the kinds of processes."""
    while not over.wait(0.2):
        for one in psutil.Process().children(recursive=True):
            try:
                line, size = " ".join(one.cmdline()), one.memory_info().rss
            except psutil.Error:
                continue
            kind = (
                "server job" if "runner_process" in line else "site job" if "worker_process" in line
                else "server" if "federate.node server" in line else "site" if "federate.node site" in line else ""
            )  # fmt: skip
            if kind:
                peaks[kind] = max(peaks[kind], size)


def _rounds(runs: Path, ends: list[float], over: threading.Event) -> None:
    """When the server's metrics.jsonl got its lines."""
    while not over.wait(0.01):
        for path in runs.glob("*/metrics.jsonl"):
            lines = path.read_bytes().count(b"\n")
            ends.extend([time.monotonic()] * (lines - len(ends)))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _connected(admin: kits.Kit) -> set[str]:
    try:
        with Session(admin) as session:
            return set(session.connected())
    except Exception:
        return set()


def _until(what: Callable[[], bool], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise SystemExit("the sites did not connect")
        time.sleep(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--network", default="simple-cnn")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--echo", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.echo:
        end_with_standard_input()
        serve(echo, given.echo)
        return
    found = []
    for sites in given.sites:
        found.append(measure(sites, given.network, given.rounds))
        print(json.dumps(found[-1]), flush=True)
    if given.out:
        given.out.write_text(json.dumps({"version": __version__, "measured": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
