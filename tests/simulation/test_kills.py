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
    flags = f"--clients 4 --min-size 5 --rounds 120 --epochs 2 --batch-size 16 --checkpoint-every 3 {extra}"
    return [sys.executable, "-m", "fedproc", "run", "--data", str(pictures), *flags.split(), "--out", str(out)]


def rounds_done(folder: Path) -> int:
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ("--method fedproc", KILLS),
        ("--method scaffold --sample 0.5 --client-memory 0", 3),
        ("--method moon --moon.mu 1 --sample 0.5", 3),
    ],
    ids=["fedproc", "scaffold with its state on disk", "moon"],
)
def test_kills(pictures: Path, tmp_path: Path, extra: str, wanted: int) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(command(pictures, whole, extra), check=True, stdout=subprocess.DEVNULL)
    moments = random.Random(time.time_ns())
    kills: list[tuple[str, int, int]] = []
    while len(kills) < wanted:
        process = subprocess.Popen(command(pictures, killed, extra), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        # the first at any moment, start-up included; the others somewhere in the next rounds, few enough that the
        # run cannot be over before the last of them, however fast or slow the machine is
        if not kills:
            time.sleep(moments.uniform(0, 3))
        else:
            least = 4 if len(kills) == wanted - 1 else 0  # by the last one there is a checkpoint with rounds in it
            target = rounds_done(killed) + moments.randint(least, 60 // wanted)
            deadline = time.monotonic() + 120
            while rounds_done(killed) < target and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.03))
        chosen = moments.choice(SIGNALS)
        assert process.poll() is None, f"the run ended by itself after {kills}"
        process.send_signal(chosen)
        _, complaint = process.communicate(timeout=60)
        kills.append((chosen.name, rounds_done(killed), process.returncode))
        if chosen is not signal.SIGKILL:
            early = process.returncode == -chosen or b"KeyboardInterrupt" in complaint  # before our own first line
            assert process.returncode == 130 or early, (kills, complaint)
    done = subprocess.run(command(pictures, killed, extra), check=True, capture_output=True, text=True)
    print(kills)
    assert "continues after round" in done.stdout, kills
    one, other = contents(whole), contents(killed)
    assert sorted(one) == sorted(other), kills
    different = [name for name in one if one[name] != other[name]]  # a diff of weights would take minutes to print
    assert not different, (different, kills)
    assert not list(killed.rglob(".tmp-*"))
