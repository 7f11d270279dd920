"""Ten kills at random moments, SIGKILL included: the restarted command ends with identical files."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import contents

KILLS = 10
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def command(pictures: Path, out: Path) -> list[str]:
    flags = "--clients 4 --min-size 5 --rounds 200 --epochs 2 --batch-size 16 --checkpoint-every 3"
    return [sys.executable, "-m", "fedproc", "run", "--data", str(pictures), *flags.split(), "--out", str(out)]


def test_ten_kills(pictures: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    began = time.monotonic()
    subprocess.run(command(pictures, whole), check=True, stdout=subprocess.DEVNULL)
    took = time.monotonic() - began

    moments = random.Random(time.time_ns())
    kills: list[tuple[str, float, int]] = []
    while len(kills) < KILLS:
        started = time.time()
        process = subprocess.Popen(command(pictures, killed), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # the first two at any moment, start-up included; the others once work has begun, so that most hit a round
        delay = moments.uniform(0, took / 4) if len(kills) < 2 else moments.uniform(0, took / 40)
        deadline = time.monotonic() + 60
        while len(kills) >= 2 and time.monotonic() < deadline and process.poll() is None:
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
    done = subprocess.run(command(pictures, killed), check=True, capture_output=True, text=True)
    print(kills)
    assert len(kills) == KILLS, f"the run finished after {kills}"
    assert "continues after round" in done.stdout, kills
    assert contents(killed) == contents(whole), kills
    assert not list(killed.rglob(".tmp-*"))
