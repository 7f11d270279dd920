"""Where runs are and how long they take: by a clock that the tests turn."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedproc.errors import Diverged, Failed
from fedproc.watchers.console import Display
from fedproc.watchers.line import NotebookLine, Text, in_notebook
from fedproc.watchers.progress import Pace, line


@dataclass
class Toy:
    """A run as watchers see it."""

    label: str
    rounds: int
    records: list[dict[str, Any]] = field(default_factory=list)
    round: int = 0
    notes: list[str] = field(default_factory=list)
    evaluated_on: str = "test"
    result: dict[str, Any] | None = None
    ended: Diverged | Failed | None = None
    path: Path | None = None

    def train(self, count: int = 1) -> Toy:
        for _ in range(count):
            self.round += 1
            self.records.append({"round": self.round, "test_accuracy": self.round / 100, "train_loss": 1.0})
        return self


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def done(pace: Pace, clock: Clock, at: float, *runs: Toy) -> float | None:
    """All these runs have done another round by then."""
    clock.now = at
    for run in runs:
        pace.update(run.train())
    return pace.left()


def test_nobody_knows_before_the_second_round_and_the_first_one_does_not_count(clock: Clock) -> None:
    run, pace = Toy("a", 10), Pace(clock)
    pace.begin([run])
    assert pace.left() is None
    assert done(pace, clock, 30.0, run) is None  # 30 s, most of them to warm up
    assert done(pace, clock, 32.0, run) == pytest.approx(8 * 2.0)
    clock.now = 33.0
    assert pace.left() == pytest.approx(8 * 2.0 - 1.0)


def test_rounds_from_before_do_not_count(clock: Clock) -> None:
    run, pace = Toy("a", 100).train(90), Pace(clock)
    pace.begin([run])
    assert done(pace, clock, 5.0, run) is None
    assert done(pace, clock, 8.0, run) == pytest.approx(8 * 3.0)


def test_runs_that_are_trained_together_end_together(clock: Clock) -> None:
    runs, pace = [Toy(name, 10) for name in "abcdef"], Pace(clock)
    pace.begin(runs)
    done(pace, clock, 10.0, *runs)
    assert done(pace, clock, 16.0, *runs[:1]) == pytest.approx(8 * 6.0)  # the first of a round is told first
    assert done(pace, clock, 16.0, *runs[1:]) == pytest.approx(8 * 6.0)
    short = [Toy("g", 3), Toy("h", 50)]
    pace.begin(short)
    done(pace, clock, 20.0, *short)
    done(pace, clock, 22.0, *short)
    assert done(pace, clock, 24.0, *short) == pytest.approx(47 * 2.0)


def test_workers_have_a_queue(clock: Clock) -> None:
    """Two workers, four runs of 10 rounds of 2 s: 40 s in all, whose first 4 s are over."""
    runs, pace = [Toy(name, 10) for name in "abcd"], Pace(clock)
    pace.begin(runs)
    done(pace, clock, 2.0, *runs[:2])
    assert done(pace, clock, 4.0, *runs[:2]) == pytest.approx(8 * 2.0 + 10 * 2.0)
    runs[1].records.pop()  # a worker died: another goes on from the checkpoint before
    pace.update(runs[1])
    assert done(pace, clock, 6.0, runs[0]) == pytest.approx((7 + 9 + 20) * 2.0)  # one is under way


def test_what_is_over_takes_no_time(clock: Clock) -> None:
    runs, pace = [Toy("a", 10), Toy("b", 10)], Pace(clock)
    pace.begin(runs)
    done(pace, clock, 1.0, *runs)
    done(pace, clock, 3.0, *runs)
    runs[1].ended = Diverged(3, "infinite")
    assert pace.left() == pytest.approx(8 * 2.0)
    runs[0].result = {"status": "finished"}
    assert pace.left() == 0.0


def test_lines() -> None:
    pace = Pace()
    assert line([Toy("a", 10).train(2)], pace) == "a  round 2/10  accuracy  2.00 %  loss 1.0000"
    both = [Toy("a", 10).train(2), Toy("b", 10).train(4)]
    assert line(both, pace) == "6 of 20 rounds of 2 runs  accuracy 2.00 to 4.00 %"
    both[0].ended = Diverged(3, "infinite")
    assert line(both[:1], pace) == "a  round 2/10  diverged in round 3"


def shown_of(rounds: int, seconds: float, clock: Clock) -> list[str]:
    """What a console that is no terminal shows of a run."""
    written = io.StringIO()
    display, run = Display(Console(file=written, width=100), clock), Toy("a", rounds)
    display.begin([run], "about", ["note"])
    for _ in range(rounds):
        clock.now += seconds
        display.update(run.train())
    display.end()
    return written.getvalue().splitlines()


def test_a_console_that_is_no_terminal_shows_a_line_every_ten_seconds(clock: Clock) -> None:
    lines = shown_of(800, 0.125, clock)  # 100 s
    assert lines[:2] == ["about", "note"] and len(lines) == 2 + 10
    assert lines[2].startswith("a  round 80/800 ") and lines[2].endswith("left 0:01:30")
    assert lines[-1].startswith("a  round 800/800") and "left" not in lines[-1]
    assert shown_of(3, 0.1, clock)[2:] == ["a  round 3/3  accuracy  3.00 %  loss 1.0000"]
    slow = shown_of(3, 60.0, clock)[2:]
    assert ["left" in each for each in slow] == [False, True, False] and slow[1].endswith("left 0:01:00")


def test_what_ends_a_run_is_said_at_once_and_once(clock: Clock) -> None:
    written = io.StringIO()
    display, runs = Display(Console(file=written, width=100), clock), [Toy("a", 5), Toy("b", 5)]
    display.begin(runs, "about", [])
    runs[0].ended = Diverged(1, "infinite")
    for _ in range(2):
        display.update(runs[0])
    assert written.getvalue().splitlines() == ["about", "a  round 0/5  diverged in round 1"]


@pytest.mark.parametrize("reasons", [True, False])
def test_why_a_run_by_itself_failed_is_said_once_or_left_to_others(reasons: bool, clock: Clock) -> None:
    written = io.StringIO()
    display, run = Display(Console(file=written, width=100), clock, reasons=reasons), Toy("a", 5)
    display.begin([run], "about", [])
    run.ended = Failed(1, "IndexError (plug.py, line 3)")
    display.update(run)
    display.end()
    why = ": IndexError (plug.py, line 3)" if reasons else ""
    assert written.getvalue().splitlines() == ["about", f"a  round 0/5  failed in round 1{why}"]


def test_a_notebooks_text_says_what_ended_runs_the_same_words_once() -> None:
    texts: list[str] = []
    watcher = NotebookLine(lambda text: lambda again: texts.append(repr(again)))
    runs = [Toy("a", 2), *(Toy(f"bad/{n}", 2) for n in range(6))]
    watcher.begin(runs, "about", [])
    watcher.update(runs[0].train())
    for run in runs[1:]:
        run.ended = Failed(1, "IndexError (plug.py, line 3)")
        watcher.update(run)
    assert "bad/0, bad/1, bad/2, bad/3 and 2 more: failed in round 1: IndexError" in texts[-1]  # at once
    watcher.update(runs[0].train())
    watcher.end()
    assert texts[-1].count("IndexError (plug.py, line 3)") == 1 and texts[-1].endswith("accuracy 2.00 %")


def test_bars_on_a_terminal_say_what_is_left_of_all(clock: Clock) -> None:
    written = io.StringIO()
    console = Console(file=written, width=100, force_terminal=True)
    display, runs = Display(console, clock), [Toy("a", 10), Toy("b", 10)]
    display.begin(runs, "about", [])
    for _ in range(2):
        clock.now += 3.0
        for run in runs:
            display.update(run.train())
    display.end()
    last = written.getvalue()
    assert "together" in last and "4/20" in last and "left 0:00:24" in last and "accuracy  2.00 %" in last


def test_a_notebook_has_one_text_that_is_rewritten() -> None:
    shown: list[str] = []

    def show(text: Text) -> Any:
        shown.append(repr(text))
        return lambda new: shown.__setitem__(-1, repr(new))

    watcher, run = NotebookLine(show), Toy("a", 3).train(1)
    watcher.begin([run], "about", ["note"])
    run.notes.append("a shard was damaged")
    for _ in range(2):
        watcher.update(run.train())
    watcher.end()
    assert shown == [
        "about\nnote\na: continues after round 1\na: a shard was damaged; going on from round 2\n"
        "a  round 3/3  accuracy  3.00 %  loss 1.0000"
    ]
    assert not in_notebook()
