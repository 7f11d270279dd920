"""What attacks share: counting, children that may die, and fuzzing for so many seconds."""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import seed as seeded
from hypothesis.strategies import SearchStrategy

MOST_MEMORY = 12 << 30  # of address space: torch maps some of it without using it
LONGEST = 300  # seconds of one child
BATCH = 25  # examples between two looks at the clock


@dataclass
class Tally:
    """How often something was tried, and what went wrong."""

    what: str
    tried: int = 0
    refused: int = 0
    problems: list[str] = field(default_factory=list)
    note: str = ""

    def count(self, outcome: str, case: object = "", may_refuse: bool = True) -> None:
        """An outcome is `fine`, `refused: a sentence`, or a problem; a refusal is one too where it may not be."""
        self.tried += 1
        if outcome.startswith("refused") and may_refuse:
            self.refused += 1
        elif outcome != "fine":
            self.problems.append(f"{self.what}: {case}: {outcome}"[:2000])

    def row(self) -> str:
        kept = self.tried - self.refused - len(self.problems)
        return f"| {self.what} | {self.tried:,} | {kept:,} | {self.refused:,} | {len(self.problems)} | {self.note} |"


HEAD = "| attack | tried | went on, nothing lost | refused in a sentence | problems | what |\n|---|---|---|---|---|---|"


def forked(work: Callable[[], Any], memory: int = MOST_MEMORY, longest: int = LONGEST) -> tuple[int, Any]:
    """Do something in a child: its exit code (negative: the signal) and what it returned. One that takes too long says
    where it is and ends. Whoever forks must not have trained: locks that threads of torch's libraries held stay locked
    in the child for ever.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.close(reading)
            faulthandler.register(signal.SIGALRM, chain=True)
            signal.alarm(longest)
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            warnings.simplefilter("ignore")
            content = pickle.dumps(work())
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(content)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, pickle.loads(content) if code == 0 and content else None


def _checking(tally: Tally, attack: Callable[[Any], str], found: dict[str, str]) -> Callable[[Any], None]:
    """What hypothesis calls; the last problem is the one it has shrunk the first to."""

    def once(example: Any) -> None:
        outcome = attack(example)
        if outcome == "fine" or outcome.startswith("refused"):
            tally.count(outcome)
            return
        found["last"] = f"{outcome} with {example!r}"
        raise AssertionError(outcome)

    return once


def fuzz(tally: Tally, strategy: SearchStrategy[Any], attack: Callable[[Any], str], seconds: float, seed: int) -> None:
    """Try examples, in batches, until the time is over; the first problem of a batch is shrunk by hypothesis."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found: dict[str, str] = {}
        once = _checking(tally, attack, found)
        checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
        how = settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=checks)
        try:
            seeded(seed)(how(given(strategy)(once)))()
        except Exception as error:
            tally.count(found.get("last", f"{type(error).__name__}: {error}"), f"seed {seed}")
            if len(tally.problems) > 5:
                return
        seed += 1
