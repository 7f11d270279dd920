"""The job with fedproc itself: python run_fedproc.py FOLDER ANSWER."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from job import answer

from fedproc import Experiment, run
from fedproc.lanes import Executor
from fedproc.simulation.session import Session


class Clock:
    """Watches when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.how = ""

    def begin(self, sessions: Sequence[Session], executor: Executor) -> None:
        self.how = f"{executor.name}, {executor.lanes} lanes x {executor.threads} torch threads"

    def update(self, session: Session) -> None:
        if len(session.records) > len(self.ends):
            self.ends.append(time.time())

    def end(self) -> None: ...


def main(folder: str, out: str) -> None:
    clock = Clock()
    done = run(Experiment(**json.loads(Path(folder, "experiment.json").read_text())), watcher=clock)
    test = {"accuracy": done.metrics[-1]["test_accuracy"], "loss": done.metrics[-1]["test_loss"]}
    answer(out, ["fedproc", "torch"], clock.ends, test, clock.how)


if __name__ == "__main__":
    main(*sys.argv[1:])
