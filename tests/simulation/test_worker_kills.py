"""Workers and their driver are killed: all runs end, with files equal to those of one undisturbed process."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import contents

TWO_CORES = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
ROUNDS, CHECKPOINT = 16, 3
LABELS = [f"{method}/seed-{seed}" for method in ("fedproc", "scaffold") for seed in (0, 1)]


def start(pictures: Path, out: Path, rounds: int, workers: int) -> subprocess.Popen[str]:
    """On two cores whatever the machine has, so that lanes have as many threads with workers as without."""
    flags = f"--methods fedproc scaffold --seeds 0 1 --clients 4 --min-size 5 --rounds {rounds} --epochs 2"
    words = [
        "compare",
        "--data",
        str(pictures),
        *flags.split(),
        "--batch-size",
        "16",
        "--checkpoint-every",
        str(CHECKPOINT),
    ]
    words += ["--device", "cpu", "--workers", str(workers), "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-m", "fedproc", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=(lambda: os.sched_setaffinity(0, TWO_CORES)) if TWO_CORES else None,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, complaint = process.communicate(timeout=300)
    assert process.returncode == 0, complaint
    return out


def rounds_done(out: Path, labels: list[str] = LABELS) -> int:
    files = [out / label / "metrics.jsonl" for label in labels]
    return sum(file.read_bytes().count(b"\n") for file in files if file.exists())


def hired(out: Path, driver: int) -> list[int]:
    """The workers of a driver that are alive."""
    try:
        events = json.loads((out / "workers" / "workers.json").read_text())["events"]
    except FileNotFoundError:
        return []
    started = {event["process"] for event in events if event["event"] == "started"}
    return [pid for pid in started if alive(pid) and parent(pid) == driver]


def stopped_at_work(out: Path, driver: subprocess.Popen[str]) -> int:
    """A worker that is halted between a checkpoint of its group and the group's end."""
    deadline = time.monotonic() + 120
    while driver.poll() is None and time.monotonic() < deadline:
        for pid in hired(out, driver.pid):
            os.kill(pid, signal.SIGSTOP)
            labels = working_on(out, pid)
            if any(CHECKPOINT < rounds_done(out, [label]) < ROUNDS for label in labels):
                return pid
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.005)
    pytest.fail("no worker was seen at work")


def working_on(out: Path, pid: int) -> list[str]:
    """The runs of the group that a worker was handed last."""
    events = json.loads((out / "workers" / "workers.json").read_text())["events"]
    seats = [event["worker"] for event in events if event.get("process") == pid]
    groups = [event["runs"] for event in events if event["event"] == "group" and event["worker"] in seats]
    return groups[-1] if groups else []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except FileNotFoundError:
        return -1


def wait_for_rounds(out: Path, target: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while rounds_done(out) < target and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def assert_equal(one: Path, other: Path) -> None:
    for label in LABELS:
        mine, theirs = contents(one / label), contents(other / label)
        assert sorted(mine) == sorted(theirs)
        assert not [name for name in mine if mine[name] != theirs[name]], label
    tables: list[Any] = []
    for folder in (one, other):
        table = json.loads((folder / "comparison.json").read_text())
        for row in table["rows"].values():
            del row["seconds"]
        tables.append(table)
    assert tables[0] == tables[1]
    assert (one / "curves.png").read_bytes() == (other / "curves.png").read_bytes()
    assert not list(other.rglob(".tmp-*"))


@pytest.fixture(scope="module")
def whole(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    finished(start(pictures, out, ROUNDS, 1))
    return out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_killed_workers_runs_are_taken_over(pictures: Path, whole: Path, tmp_path: Path) -> None:
    process = start(pictures, tmp_path, ROUNDS, 2)
    os.kill(stopped_at_work(tmp_path, process), signal.SIGKILL)
    said = finished(process)
    assert "was ended by SIGKILL (by somebody, or for want of memory); going on from round" in " ".join(said.split())
    events = json.loads((tmp_path / "workers" / "workers.json").read_text())["events"]
    assert [event["event"] for event in events].count("died") == 1
    assert_equal(whole, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_kills_of_workers_and_drivers(pictures: Path, tmp_path: Path) -> None:
    """Started over and over on other numbers of workers, and killed at random moments."""
    rounds, once, killed = 150, tmp_path / "once", tmp_path / "killed"
    finished(start(pictures, once, rounds, 1))
    moments = random.Random(time.time_ns())
    kills: list[tuple[str, str, int]] = []
    while len(kills) < 12:
        process = start(pictures, killed, rounds, moments.choice((2, 2, 3)))
        before = rounds_done(killed)
        for _ in range(2):  # of two workers, before the driver
            wait_for_rounds(killed, rounds_done(killed) + moments.randint(1, 15), process)
            time.sleep(moments.uniform(0, 0.05))
            workers = hired(killed, process.pid)
            if workers:
                os.kill(moments.choice(workers), signal.SIGKILL)
                kills.append(("worker", "SIGKILL", rounds_done(killed)))
        wait_for_rounds(killed, before + 20, process)
        workers = hired(killed, process.pid)
        chosen = moments.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
        assert process.poll() is None, f"it ended by itself after {kills}"
        process.send_signal(chosen)
        process.communicate(timeout=60)
        kills.append(("driver", chosen.name, rounds_done(killed)))
        if chosen is not signal.SIGKILL:
            assert process.returncode == 130, kills
            assert not [pid for pid in workers if alive(pid)], "a worker outlived an interrupted driver"
        deadline = time.monotonic() + 5
        while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not [pid for pid in workers if alive(pid)], "a worker outlived its driver"
    print(kills)
    finished(start(pictures, killed, rounds, 3))
    assert_equal(once, killed)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_sweep_goes_on_with_other_workers(pictures: Path, whole: Path, tmp_path: Path) -> None:
    """Begun by one process, continued by three workers, then by two."""
    for workers, target in ((1, 6), (3, 24)):
        process = start(pictures, tmp_path, ROUNDS, workers)
        wait_for_rounds(tmp_path, target, process)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
        assert process.returncode == 130 and "the same command continues" in complaint
    finished(start(pictures, tmp_path, ROUNDS, 2))
    assert_equal(whole, tmp_path)
