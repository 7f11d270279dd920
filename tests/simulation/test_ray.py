"""Runs over two nodes of a Ray cluster on this machine: a node and the driver are killed, workers without Ray go on and
the cluster again, and all runs end with files equal to those of one undisturbed process.
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
from pathlib import Path

import psutil
import pytest
from test_worker_kills import ROUNDS, TWO_CORES, assert_equal, finished, rounds_done, start, wait_for_rounds

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="nodes are found in /proc")]


class Nodes:
    """A Ray cluster of nodes with one core each, all on this machine, whose token is its own."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        host, port = self.address.split(":")
        self._folder = tempfile.mkdtemp(prefix="ray-")  # of its own, or Ray remembers this cluster as the machine's
        words = ["--head", "--port", port, "--node-ip-address", host, "--include-dashboard", "false"]
        self.started = [self._start(*words, "--temp-dir", self._folder)]

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus", "1", *words]
        made = subprocess.Popen(
            [*command, "--object-store-memory", "80000000", "--disable-usage-stats"],
            env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + 90
        while not self._raylets(made) and time.monotonic() < deadline:
            assert made.poll() is None, "ray start ended"
            time.sleep(0.2)
        return made

    def add(self) -> None:
        self.started.append(self._start("--address", self.address, "--node-ip-address", "127.0.0.1"))

    @staticmethod
    def _raylets(of: subprocess.Popen[bytes]) -> list[psutil.Process]:
        family = psutil.Process(of.pid).children(recursive=True)
        return [each for each in family if each.name() == "raylet"]

    def kill_last(self) -> None:
        """As a machine that is switched off."""
        node = self.started.pop()
        family = psutil.Process(node.pid).children(recursive=True)
        for process in (psutil.Process(node.pid), *family):
            process.kill()
        node.wait()

    def end(self) -> None:
        while self.started:
            self.kill_last()
        shutil.rmtree(self._folder, ignore_errors=True)

    def compare(self, pictures: Path, out: Path) -> subprocess.Popen[str]:
        flags = f"--methods fedproc scaffold --seeds 0 1 --clients 4 --min-size 5 --rounds {ROUNDS} --epochs 2"
        words = ["compare", "--data", str(pictures), *flags.split(), "--batch-size", "16", "--checkpoint-every", "3"]
        words += ["--device", "cpu", "--cluster", f"ray:{self.address}", "--out", str(out)]
        return subprocess.Popen(
            [sys.executable, "-m", "fedproc", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment,
        )  # fmt: skip


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    try:
        made.add()
        yield made
    finally:
        made.end()


def events(out: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads((out / "workers" / "workers.json").read_text())["events"]
    return found


def test_a_node_and_then_the_driver_are_killed(nodes: Nodes, pictures: Path, tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    finished(start(pictures, whole, ROUNDS, 1))
    process = nodes.compare(pictures, out)
    wait_for_rounds(out, 6, process)
    nodes.kill_last()
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        if any(event["event"] == "died" for event in events(out)):
            break
        time.sleep(0.1)
    assert any(event["event"] == "died" for event in events(out))
    done = rounds_done(out)
    wait_for_rounds(out, done + 4, process)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = rounds_done(out)
    here = start(pictures, out, ROUNDS, 2)  # goes on with workers of this machine, and then on the cluster again
    wait_for_rounds(out, done + 4, here)
    here.send_signal(signal.SIGINT)
    _, complaint = here.communicate(timeout=60)
    assert here.returncode == 130 and "the same command continues" in complaint
    assert done + 4 <= rounds_done(out) < 4 * ROUNDS
    finished(nodes.compare(pictures, out))
    made = json.loads((out / "workers" / "workers.json").read_text())
    assert made["reason"].endswith(f"of ray:{nodes.address}")  # Ray may still count the node that is dead
    assert_equal(whole, out)
    assert not list((out / "workers").glob("job-*.stop"))


def test_what_a_cluster_has_not_is_refused_at_once(nodes: Nodes, pictures: Path, tmp_path: Path) -> None:
    def refused(*more: str, token: str | None = None) -> str:
        words = ["compare", "--data", str(pictures), "--cluster", f"ray:{nodes.address}", "--out", str(tmp_path), *more]
        environment = nodes.environment if token is None else {**nodes.environment, "RAY_AUTH_TOKEN": token}
        began = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "-m", "fedproc", *words], capture_output=True, text=True, env=environment, timeout=120
        )
        assert ended.returncode == 2 and time.monotonic() - began < 60
        return " ".join(ended.stderr.split())

    assert "has a GPU" in refused("--device", "cuda")
    assert "has 2 cores for tasks" in refused("--device", "cpu", "--workers", "3")
    assert "a cluster says which GPU" in refused("--device", "cuda:1")
    assert TWO_CORES and not (tmp_path / "fedavg").exists()
