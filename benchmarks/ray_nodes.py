#!/usr/bin/env python3
"""A sweep on one and on two Ray nodes of this machine, each pinned to a core of its own.

    python benchmarks/ray_nodes.py [--repeats 3] [--rounds 6] [--runs 4] [--out FILE]

Needs `pip install 'fedproc[ray]'` and two cores. Runs of FedProc on the embedded images, as many as asked for, through
`fedproc compare --cluster ray`, on one node and on two in turn. What is timed is the sweep: from the moment when the
first group was handed out until the last one was done, starting each task's Python included; and the whole command.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median

from common import Record, parser, save, show

START = 90  # seconds that a node may take to come up


@contextmanager
def cluster(cores: list[int]) -> Iterator[tuple[str, dict[str, str]]]:
    """Nodes of one core each, pinned to these; their address, and the environment that has their token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"127.0.0.1:{port}"
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    ray = str(Path(sys.executable).with_name("ray"))
    nodes: list[subprocess.Popen[bytes]] = []
    folder = tempfile.mkdtemp(prefix="ray-")  # of its own, or Ray remembers this cluster as the machine's
    try:
        for place, core in enumerate(cores):
            head = ["--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", folder]
            where = ["--address", address] if place else head
            command = [ray, "start", "--block", "--num-cpus", "1", "--node-ip-address", "127.0.0.1", *where]
            command += ["--object-store-memory", "80000000", "--disable-usage-stats"]
            nodes.append(subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=lambda core=core: os.sched_setaffinity(0, [core]),
            ))  # fmt: skip
            if not place:
                wait_for_port(port)
        wait_for_nodes(address, len(cores), environment)
        yield address, environment
    finally:
        for node in reversed(nodes):
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGTERM)
        for node in nodes:
            node.wait()
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    sys.exit(f"no Ray node came up in {START} s")


def wait_for_nodes(address: str, count: int, environment: dict[str, str]) -> None:
    said = (
        "import ray, sys, time; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='error')\n"
        "while sum(node['Alive'] for node in ray.nodes()) < int(sys.argv[2]): time.sleep(0.2)"
    )
    subprocess.run([sys.executable, "-c", said, address, str(count)], env=environment, check=True, timeout=START)


def timed(cores: list[int], words: list[str], out: Path) -> Record:
    """Seconds of the sweep and of the command, on nodes pinned to these cores."""
    with cluster(cores) as (address, environment):
        began = time.perf_counter()
        command = [sys.executable, "-m", "fedproc", "compare", *words, "--cluster", f"ray:{address}", "--out", str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        whole = time.perf_counter() - began
    if done.returncode:
        sys.exit(done.stderr)
    events = json.loads((out / "workers" / "workers.json").read_text())["events"]
    at = {kind: [datetime.fromisoformat(e["at"]) for e in events if e["event"] == kind] for kind in ("group", "done")}
    return {"nodes": len(cores), "sweep": (max(at["done"]) - min(at["group"])).total_seconds(), "command": whole}


def main() -> None:
    options = parser(__doc__ or "", "benchmark-ray-nodes.json")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--runs", type=int, default=4)
    given = options.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        options.error("expected two cores")
    words = f"--methods fedproc --data fashion-mini --clients 10 --rounds {given.rounds} --epochs 2 --batch-size 32"
    words += " --device cpu --seeds " + " ".join(map(str, range(given.runs)))
    found: list[Record] = []
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(given.repeats):
            for count in (1, 2):
                load = os.getloadavg()[0]
                each = timed(cores[:count], words.split(), Path(scratch, f"{repeat}-{count}"))
                found.append({**each, "load_before": load})
                print(f"{count} nodes: {each['sweep']:.1f} s, load before {load:.1f}", flush=True)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    ratios = {part: sorted(one[part] / two[part] for one, two in pairs) for part in ("sweep", "command")}
    rows = [
        (part, *(median(each[part] for each in found if each["nodes"] == n) for n in (1, 2)), median(ratios[part]),
         f"{ratios[part][0]:.2f} to {ratios[part][-1]:.2f}")
        for part in ratios
    ]  # fmt: skip
    show(f"{given.runs} runs on Ray nodes of a core", ["seconds", "one node", "two", "one over two", "spread"], rows)
    save(given.out, {"pairs": found, "one_over_two": ratios})


if __name__ == "__main__":
    main()
