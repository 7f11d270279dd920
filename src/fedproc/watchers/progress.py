"""Where runs are, in a line of text, and how long they still take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from fedproc.errors import Failed
from fedproc.simulation.watching import Record, Watched

RECENT = 10  # rounds whose pace counts
SHOWN = 4  # labels in a line


class Pace:
    """The time left, from the second round on: a first round also warms up, and says little of those that follow.

    What a round of a run takes is the time between its own rounds, with all that is trained beside it. The rounds that
    a continued run has from before do not count. Runs that nobody has begun (workers have a queue of them) take as long
    as the others, as many at once as there are under way.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: Sequence[Watched] = ()
        self._done: dict[str, int] = {}
        self._times: dict[str, deque[float]] = {}

    def begin(self, runs: Sequence[Watched]) -> None:
        self._runs, self._times = runs, {}
        self._done = {run.label: len(run.records) for run in runs}

    def update(self, run: Watched) -> None:
        before, now = self._done.get(run.label, 0), len(run.records)
        self._done[run.label] = now
        if now < before:  # a worker took it over, from an earlier round
            self._times.pop(run.label, None)
        elif now > before:
            self._times.setdefault(run.label, deque(maxlen=RECENT)).append(self._clock())

    def left(self) -> float | None:
        """Seconds until all runs are done; None while nobody can know."""
        each = {label: (t[-1] - t[0]) / (len(t) - 1) for label, t in self._times.items() if len(t) > 1}
        if not each:
            return None
        usual, now = sum(each.values()) / len(each), self._clock()
        waits = []
        for run in self._runs:
            rounds = 0 if over(run) else max(0, run.rounds - len(run.records))
            pace = each.get(run.label, usual)
            begun = self._times.get(run.label)
            since = min(now - begun[-1], pace) if begun else 0.0
            waits.append(max(0.0, rounds * pace - since))
        at_once = sum(not over(run) and run.label in self._times for run in self._runs)
        return max(max(waits, default=0.0), sum(waits) / max(1, at_once))


def over(run: Watched) -> bool:
    return run.result is not None or run.ended is not None or len(run.records) >= run.rounds


def line(runs: Sequence[Watched], pace: Pace, reasons: bool = True) -> str:
    """Where the runs are: one in detail, many together."""
    left = pace.left()
    tail = "" if left is None or all(over(run) for run in runs) else f"  left {shown(left)}"
    if len(runs) == 1:
        (run,) = runs
        return f"{run.label}  round {len(run.records)}/{run.rounds}  {state(run, reasons)}{tail}"
    done, total = sum(len(run.records) for run in runs), sum(run.rounds for run in runs)
    found = sorted(value for run in runs if (value := accuracy(run)) is not None)
    ends = dict.fromkeys(f"{100 * value:.2f}" for value in found[:1] + found[-1:])
    seen = f"  accuracy {' to '.join(ends)} %" if found else ""
    return f"{done} of {total} rounds of {len(runs)} runs{seen}{tail}"


def state(run: Watched, reasons: bool = True) -> str:
    """A run's last accuracy and loss, or what ended it."""
    if run.ended is not None:
        failed = isinstance(run.ended, Failed)
        how = "failed" if failed else "diverged"
        return str(run.ended) if failed and reasons else f"{how} in round {run.ended.round}"
    last = accuracy(run)
    if not run.records:
        return ""
    shown = "" if last is None else f"accuracy {100 * last:5.2f} %  "
    return f"{shown}{_loss(run.records[-1])}{_refused(run.records[-1])}"


def listed(labels: Sequence[str]) -> str:
    """Some of these labels, and how many more there are."""
    return ", ".join(labels[:SHOWN]) + (f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else "")


def continued(run: Watched) -> str:
    """Where a run goes on that was begun before."""
    return f"; going on from round {run.round}" if run.round else ""


def _refused(record: Record) -> str:
    """Whose answers of the last round were refused, and why."""
    refused = record.get("refused", {})
    why = "".join(f"  refused: client {client}: {reason}" for client, reason in list(refused.items())[:1])
    return why + (f" and {len(refused) - 1} more" if len(refused) > 1 else "")


def accuracy(run: Watched) -> float | None:
    key = f"{run.evaluated_on}_accuracy"
    return next((float(record[key]) for record in reversed(run.records) if key in record), None)


def shown(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _loss(record: Record) -> str:
    loss = record.get("train_loss")
    return "" if loss is None else f"loss {loss:.4f}"
