"""What the benchmarks share: data of a shape, runs in memory, the machine, a small table and a JSON file."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedproc import Experiment
from fedproc.data.images import Images, Split
from fedproc.lanes import cores
from fedproc.simulation.drive import drive, executor_for, work_of
from fedproc.simulation.preparation import Library
from fedproc.simulation.session import Session

Record = dict[str, Any]


class Shelf(Library):
    """Hands out one set of images, whatever is asked for."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        self._made = images

    def images(self, experiment: Experiment) -> Images:
        return self._made


def noise(classes: int, train: int, test: int = 1000, side: int = 32) -> Images:
    """Random colour images, as many of each class: speed does not depend on what is in them."""
    rng = np.random.default_rng(0)

    def split(count: int) -> Split:
        some = rng.integers(0, 256, (min(count, 50_000), 3, side, side), np.uint8)
        return Split(np.resize(some, (count, 3, side, side)), np.arange(count) % classes)

    return Images("noise", split(train), split(test), tuple(f"class-{k}" for k in range(classes)))


def run_in_memory(library: Library, *experiments: Experiment) -> tuple[list[Session], Record]:
    """Sessions driven together to their end, with the wall clock, the use of lanes and the most memory held."""
    sessions = [Session(experiment, library, str(place)) for place, experiment in enumerate(experiments)]
    with executor_for(sessions) as executor:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        drive(sessions, executor)
        spent = time.perf_counter() - began
        return sessions, {
            "wall_seconds": spent,
            "executor": executor.name,
            "lanes": executor.lanes,
            **work_of(executor),
        }


def steady(
    sessions: Sequence[Session], skip: int = 1, parts: Sequence[str] = ("train", "prototypes", "merge")
) -> float:
    """The median second a round, diagnostics aside, of all sessions together; the first rounds warm up."""
    rounds = zip(*(session.records for session in sessions), strict=True)
    spent = [sum(record["seconds"][part] for record in records for part in parts) for records in rounds]
    return float(np.median(spent[skip:]))


def machine() -> Record:
    """Where the numbers come from."""
    found: Record = {"python": platform.python_version(), "torch": torch.__version__, "cores": cores()}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    else:
        found["cpu"] = cpu_name()
    return {**found, "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])}


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def parser(description: str, default: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--out", type=Path, default=Path(default), help=f"JSON file to write (default {default})")
    return made


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*(_cell(cell) for cell in row))
    Console().print(table)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def save(path: Path, found: Record) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **found}, indent=2) + "\n")
    print(f"written: {path}")
