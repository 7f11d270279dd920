"""What docs/speed.md and docs/workers.md say of the H200 is what the kept files say."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from results_pages import cells, plain

DOCS = Path(__file__).parent.parent / "docs"
SPEED = (DOCS / "speed.md").read_text(encoding="utf-8")
WORKERS = plain((DOCS / "workers.md").read_text(encoding="utf-8"))


def kept(name: str) -> Any:
    return json.loads((DOCS / "results" / "speed" / name).read_text(encoding="utf-8"))


def test_alone_and_the_sweep() -> None:
    found = kept("h200-known-slopes.json")
    table = cells(SPEED, "| | seconds | before | wanted |")
    assert table["FedProc alone, second start on a machine"][0] == f"{found['alone']['second_start_seconds']:.1f}"
    sweep = found["sweep"]
    per_run = f"{sweep['seconds'] / sweep['runs']:.1f} ({sweep['seconds']:.1f} in all)"
    assert table["6 methods x 3 seeds in one command, seconds per run, 7 workers"][0] == per_run
    search = found["campaign"]["search-0.1"]
    said = (
        f"{search['seconds'] / search['full_runs']:.1f} with {search['workers']} workers ({search['seconds']} in all)"
    )
    assert said in SPEED and f"{search['full_runs']} full runs' work" in SPEED


def test_what_is_said_of_the_groups() -> None:
    found = kept("h200-known-slopes.json")["sweep"]
    seconds = {len(group["runs"]): [] for group in found["groups"]}
    for group in found["groups"]:
        seconds[len(group["runs"])].append(group["seconds_per_round"])
    for text in (plain(SPEED), WORKERS):
        for some in seconds.values():
            assert f"{min(some):.2f} to {max(some):.2f} s" in text
    every = [second for some in seconds.values() for second in some]
    shared, besides = sum(every) / len(every), found["seconds"] - 100 * max(every)
    said = f"shared evenly, {shared:.2f} s per round, and the {besides:.0f} s that passed besides"
    assert f"{said}, it would take {(100 * shared + besides) / found['runs']:.1f} s per run" in plain(SPEED)
    plain_run = min(every) / 3
    assert 3.5 < (sum(seconds[2]) / len(seconds[2]) - plain_run) / plain_run < 4


def test_steps() -> None:
    table = cells(SPEED, "| lanes | layer by layer (9ad7c77) |")
    steps = kept("h200-known-slopes.json")["microseconds_per_step_of_fedproc, each taken twice in turn"]
    for lanes, (_, before, now, samples) in table.items():
        taken = [", ".join(f"{turn[lanes]:.0f}" for turn in steps[commit]) for commit in ("2240413", "8264247")]
        assert [before, now] == taken
        assert samples == f"{int(lanes) * 64 / steps['8264247'][0][lanes]:.1f} million"


def test_five_rounds_with_more_or_fewer_workers() -> None:
    found = kept("h200-known-slopes.json")["workers, 5 rounds of 18 runs each"]
    *walls, last = (f"{each['wall_seconds']:.1f}" for each in found)
    assert f"took {', '.join(walls)} and {last} s with 2, 3, 4 and 7 workers" in WORKERS
    slowest = max(found[-1]["median_seconds_per_round_of_each_group"])
    extrapolated = found[-1]["seconds_per_run_of_100_rounds_extrapolated"]
    assert f"{slowest:.2f} s per round of the slowest group, 7 workers would take {extrapolated:.1f} s" in WORKERS


def test_against_pfl() -> None:
    rows = {row["system"]: row for row in kept("rivals-h200-pfl.json")["jobs"][0]["rows"]}
    ours, theirs = ([median(each) for each in rows[name]["repeats"]] for name in ("fedproc", "pfl"))
    ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
    whole = [median([second for each in rows[name]["repeats"] for second in each]) for name in ("fedproc", "pfl")]
    said = f"fedproc {whole[0]:.3f} s per round, pfl {whole[1]:.3f} s, **{median(ratios):.1f} times** as long"
    assert f"{said} ({ratios[0]:.1f} and {ratios[1]:.1f})" in plain(SPEED)
