#!/usr/bin/env python3
"""`fedproc compare` at the paper's CIFAR-10 scale over 1, 2, 3, 4 and 6 workers, on one GPU with and without MPS.

    FEDPROC_DATA=DIR python benchmarks/workers.py [--rounds 12] [--mps 1 4 6 3 2] [--turns 2 4] [--out FILE]

Six methods x three seeds, so many rounds of each. Workers train groups of runs that do not wait for each other, so what
a round takes is measured group by group, as the median from the third round on, as long as no group is done: the last
ones would have the GPU to themselves. The worker that has most to do counts. From there to 100 rounds: the wall clock
that was measured, and the missing rounds at that pace, which is too much where that worker is alone in the end. `fixed`
is what the wall clock has besides its rounds: Python, torch, images, kernels, captures, first rounds, drawing. Results
are printed and written as they come; what does not fit into --budget seconds is left out and said so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from common import Record, parser, save, show

METHODS = ["fedavg", "fedprox", "scaffold", "moon", "fednova", "fedproc"]
POLL = 0.02  # seconds between looks at what rounds are done
FULL = 100
WARM = 2  # first rounds of a run that do not count


def timed(words: list[str], folder: Path, mps: bool) -> tuple[float, dict[str, dict[int, float]], str | None]:
    """The wall clock of a command, when each run in its folder had done which round, its last words if it failed."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **({} if mps else {"FEDPROC_MPS": "0"})}
    done: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryFile("w+") as said:
        began = time.perf_counter()
        words = [sys.executable, "-m", "fedproc", *words, "--out", str(folder)]
        process = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT, text=True, env=environment)
        ended = False
        while not ended:
            ended = process.poll() is not None
            for path in folder.glob("*/seed-*/metrics.jsonl"):
                of_run = done.setdefault(str(path.parent.relative_to(folder)), {})
                for number in range(len(of_run) + 1, path.read_bytes().count(b"\n") + 1):
                    of_run[number] = since(began)
            time.sleep(POLL)
        wall = since(began)
        said.seek(0)
        lines = said.read().splitlines()
    for line in lines[:5]:
        if re.search(r"\bworkers\b", line) or line.startswith("one process"):
            print(f"    {line.strip()}", flush=True)
    return wall, done, None if process.returncode == 0 else "\n".join(lines[-20:])


def since(began: float) -> float:
    return time.perf_counter() - began


def paces(done: dict[str, dict[int, float]], groups: list[list[str]], rounds: int) -> list[float]:
    """Seconds per round of each group, whose runs advance together, as long as all groups are at work."""
    ends = [[max(done[label][number] for label in labels) for number in range(1, rounds + 1)] for labels in groups]
    first = min(each[-1] for each in ends)
    found = []
    for each in ends:
        together = [end for end in each[WARM - 1 :] if end <= first]
        some = together if len(together) > 1 else each[WARM - 1 :]
        found.append(statistics.median(b - a for a, b in pairwise(some)))
    return found


def main() -> None:
    options = parser(__doc__ or "", "benchmark-workers.json")
    options.add_argument("--data-dir", default=os.environ.get("FEDPROC_DATA"), help="default: FEDPROC_DATA")
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--mps", type=int, nargs="*", default=[1, 4, 6, 3, 2], help="workers, with MPS where it works")
    options.add_argument("--turns", type=int, nargs="*", default=[2, 4], help="workers without MPS")
    options.add_argument("--seeds", nargs="*", default=["0", "1", "2"])
    options.add_argument("--methods", nargs="*", default=METHODS)
    options.add_argument("--more", nargs="*", default=[], help="further words for `fedproc compare`, without their --")
    options.add_argument("--folder", type=Path, default=Path("runs/workers"))
    options.add_argument("--budget", type=float, default=570.0, help="seconds that all of it may take")
    options.add_argument("--no-warm-up", action="store_true", help="kernels are compiled already")
    given = options.parse_args()
    if given.data_dir is None:
        options.error("--data-dir: expected the folder of CIFAR-10's files, here or in FEDPROC_DATA")
    if given.rounds < WARM + 2:
        options.error(f"--rounds {given.rounds}: expected at least {WARM + 2}")
    began, longest = time.perf_counter(), 0.0
    base = ["compare", "--data", "cifar10", "--data-dir", given.data_dir, "--methods", *given.methods]
    for pair in given.more:
        base += [f"--{pair}"]
    if not given.no_warm_up:
        wall, _, failed = timed(
            [*base, "--seeds", "0", "--rounds", "1", "--workers", "1", "--fresh"], given.folder / "warm", False
        )
        print(f"warm-up: {wall:.1f} s", flush=True)
        if failed:
            sys.exit(failed)
    runs = len(given.methods) * len(given.seeds)
    results: list[Record] = []
    for workers, mps in [*((n, True) for n in given.mps), *((n, False) for n in given.turns)]:
        name = f"{workers} workers{'' if mps or workers == 1 else ', FEDPROC_MPS=0'}"
        if time.perf_counter() - began + 1.1 * longest > given.budget:
            print(f"{name}: left out, no time", flush=True)
            continue
        folder = given.folder / f"{workers}-{'mps' if mps else 'turns'}"
        shutil.rmtree(folder, ignore_errors=True)
        words = [*base, "--seeds", *given.seeds, "--rounds", str(given.rounds), "--workers", str(workers)]
        wall, done, failed = timed(words, folder, mps)
        longest = max(longest, wall)
        if failed is not None:
            print(f"{name}: failed\n{failed}", flush=True)
            results.append({"workers": workers, "mps_wanted": mps, "failed": failed})
            continue
        how = folder / "workers" / "workers.json"
        chosen = json.loads(how.read_text()) if how.exists() else {"mps": False, "events": []}
        groups = [(e["worker"], e["runs"]) for e in chosen["events"] if e["event"] == "group"] or [(0, list(done))]
        each = paces(done, [labels for _, labels in groups], given.rounds)
        of_worker: dict[int, float] = {}
        for (worker, _), pace in zip(groups, each, strict=True):
            of_worker[worker] = of_worker.get(worker, 0.0) + pace
        pace = max(of_worker.values())
        full = wall + (FULL - given.rounds) * pace
        last = max(times[given.rounds] for times in done.values())
        first = min(times[1] for times in done.values())
        row: Record = {
            "workers": workers, "mps": chosen["mps"], "wall_seconds": wall, "rounds": given.rounds, "runs": runs,
            "seconds_per_round_of_each_group": each, "groups": [labels for _, labels in groups],
            "seconds_per_round": pace, "fixed_seconds": wall - given.rounds * pace,
            "first_round_done_after": first, "last_round_done_after": last,
            "seconds_per_full_run": full / runs, "events": chosen["events"],
        }  # fmt: skip
        environments = [json.loads(path.read_text()) for path in folder.glob("*/seed-*/environment.json")]
        row["lanes"] = sorted({found["lanes"] for found in environments})
        row["peak_memory_bytes"] = [found.get("peak_memory_bytes") for found in environments]
        results.append(row)
        print(
            f"{name}: MPS {'yes' if row['mps'] else 'no'}, {wall:.1f} s for {given.rounds} rounds of {runs} runs; "
            f"{pace:.3f} s per round, fixed {row['fixed_seconds']:.1f} s; "
            f"at {FULL} rounds {full:.0f} s, {full / runs:.2f} s a run",
            flush=True,
        )
        save(given.out, {"results": results})
    columns = ["workers", "MPS", "wall s", "s per round", "fixed s", f"s per run of {FULL} rounds, extrapolated"]
    rows = [
        (r["workers"], "yes" if r["mps"] else "no", r["wall_seconds"], r["seconds_per_round"], r["fixed_seconds"],
         r["seconds_per_full_run"])
        for r in results if "failed" not in r
    ]  # fmt: skip
    show(f"{runs} runs of CIFAR-10 at the paper's scale, {given.rounds} rounds", columns, rows)


if __name__ == "__main__":
    main()
