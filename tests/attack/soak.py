"""Train thousands of rounds in one process and look at what grows: memory, open files, threads, the run's folder.

    python tests/attack/soak.py [--rounds 3000] [--method scaffold+fedproc]

Prints the table of docs/reliability.md; exit code 1 if the last three looks find a tenth more than earlier ones.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
from PIL import Image

HEAD = "| round | memory, MB | open files | threads | files of the run | their MB, without metrics | ms per round |"
ALLOWED = 1.1  # files come and go while one looks


class Sample(NamedTuple):
    """What the process and its folder are after so many rounds."""

    round: int
    memory: float
    handles: int
    threads: int
    files: int
    size: float
    seconds: float


def write_images(folder: Path) -> Path:
    chance = np.random.default_rng(0)
    for label in ("a", "b", "c"):
        (folder / label).mkdir(parents=True)
        for number in range(30):
            pixels = chance.integers(0, 255, (16, 16), np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{number}.png")
    return folder


def rounds_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def look(process: psutil.Process, run: Path, done: int, began: float) -> Sample:
    sizes = []
    for path in run.rglob("*"):
        try:
            if path.is_file() and path.name != "metrics.jsonl":
                sizes.append(path.stat().st_size)
        except FileNotFoundError:  # a checkpoint that was let go of meanwhile
            continue
    with process.oneshot():
        memory, handles, threads = process.memory_info().rss / 1e6, process.num_fds(), process.num_threads()
    return Sample(done, memory, handles, threads, len(sizes), sum(sizes) / 1e6, time.monotonic() - began)


def soak(rounds: int, method: str, place: Path) -> list[Sample]:
    """A run of that many rounds, looked at ten times."""
    data, run = write_images(place / "images"), place / "run"
    words = ["run", "--data", str(data), "--method", method, "--clients", "3", "--epochs", "1", "--batch-size", "8"]
    words += ["--rounds", str(rounds), "--client-memory", "0", "--min-size", "5", "--device", "cpu"]
    words += ["--preset", "paper", "--checkpoint-every", "1", "--augment", "none", "--out", str(run)]
    began = time.monotonic()
    with (place / "said").open("w+b") as said:
        started = subprocess.Popen([sys.executable, "-m", "fedproc", *words], stdout=said, stderr=said)
        process, samples = psutil.Process(started.pid), []
        while started.poll() is None and len(samples) < 10:
            done = rounds_of(run)
            if done >= rounds * (len(samples) + 1) // 10 - 1:  # the last is looked at before the process ends
                try:
                    samples.append(look(process, run, done, began))
                except psutil.NoSuchProcess:
                    break
            time.sleep(0.02)
        if started.wait() != 0:
            raise SystemExit((place / "said").read_text())
    if len(samples) < 9 or rounds_of(run) != rounds:
        raise SystemExit(f"{rounds_of(run)} of {rounds} rounds, looked at {len(samples)} times: too quick to be seen")
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--method", default="scaffold+fedproc")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedproc-soak-") as place:
        samples = soak(given.rounds, given.method, Path(place))
    print(f"{HEAD}\n|{'---:|' * len(Sample._fields)}")
    before = samples[0]._replace(round=0, seconds=0.0)
    for sample in samples:
        each = 1000 * (sample.seconds - before.seconds) / max(1, sample.round - before.round)
        shown = [f"{sample.round:,}", f"{sample.memory:.0f}", sample.handles, sample.threads, sample.files]
        print(f"| {' | '.join(map(str, [*shown, f'{sample.size:.2f}', f'{each:.1f}']))} |")
        before = sample
    grown = []
    for name in ("memory", "handles", "threads", "files", "size"):
        seen = [getattr(sample, name) for sample in samples]
        if statistics.fmean(seen[-3:]) > ALLOWED * statistics.fmean(seen[1:4]):
            grown.append(name)
    print(f"\n{', '.join(grown)} grew" if grown else "\nnothing grew")
    return 1 if grown else 0


if __name__ == "__main__":
    raise SystemExit(main())
