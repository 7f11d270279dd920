"""The job with fedproc itself: python run_fedproc.py FOLDER ANSWER."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from job import answer

from fedproc import Experiment, run
from fedproc.simulation.watching import Watched


class Clock:
    """Watches when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.how = ""

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        self.how = about

    def update(self, run: Watched) -> None:
        if len(run.records) > len(self.ends):
            self.ends.append(time.time())

    def end(self) -> None: ...


def main(folder: str, out: str) -> None:
    clock = Clock()
    done = run(Experiment(**json.loads(Path(folder, "experiment.json").read_text())), watcher=clock)
    test = {"accuracy": done.metrics[-1]["test_accuracy"], "loss": done.metrics[-1]["test_loss"]}
    answer(out, ["fedproc", "torch"], clock.ends, test, clock.how)


if __name__ == "__main__":
    main(*sys.argv[1:])
