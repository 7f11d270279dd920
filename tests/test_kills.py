"""Ten kills at random moments, SIGKILL included: the restarted command ends with identical files."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import contents

KILLS = 10
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def command(pictures: Path, out: Path, extra: str) -> list[str]:
    flags = f"--clients 4 --min-size 5 --rounds 200 --epochs 2 --batch-size 16 --checkpoint-every 3 {extra}"
    return [sys.executable, "-m", "fedproc", "run", "--data", str(pictures), *flags.split(), "--out", str(out)]


@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ("--method fedproc", KILLS),
        ("--method scaffold --sample 0.5 --client-memory 0", 3),
        ("--method moon --moon.mu 1 --sample 0.5 --rounds 120", 3),
    ],
    ids=["fedproc", "scaffold with its state on disk", "moon"],
)
def test_kills(pictures: Path, tmp_path: Path, extra: str, wanted: int) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    subprocess.run(command(pictures, whole, extra), check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began

    moments = random.Random(time.time_ns())
    kills: list[tuple[str, float, int]] = []
    while len(kills) < wanted:
        started = time.time()
        process = subprocess.Popen(command(pictures, killed, extra), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # the first at any moment, start-up included; the others once work has begun, so that most hit a round
        anywhere = len(kills) < (2 if wanted == KILLS else 1)
        delay = moments.uniform(0, took / 5) if anywhere else moments.uniform(took / 40, took * 0.6 / wanted)
        deadline = time.monotonic() + 60
        while not anywhere and time.monotonic() < deadline and process.poll() is None:
            environment = killed / "environment.json"
            if environment.exists() and environment.stat().st_mtime > started:
                break
            time.sleep(0.002)
        time.sleep(delay)
        chosen = moments.choice(SIGNALS)
        if process.poll() is not None:
            break  # finished before its kill: nothing left to interrupt
        process.send_signal(chosen)
        _, complaint = process.communicate(timeout=60)
        kills.append((chosen.name, delay, process.returncode))
        if chosen is not signal.SIGKILL:
            early = process.returncode == -chosen or b"KeyboardInterrupt" in complaint  # before our own first line
            assert process.returncode == 130 or (early and len(kills) <= 2), (kills, complaint)
    done = subprocess.run(command(pictures, killed, extra), check=True, capture_output=True, text=True)
    print(kills)
    assert len(kills) == wanted, f"the run finished after {kills}"
    assert "continues after round" in done.stdout, kills
    assert contents(killed) == contents(whole), kills
    assert not list(killed.rglob(".tmp-*"))
