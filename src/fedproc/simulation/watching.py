"""Those who want to see the work go on, and what they see of a run: in this process, or in a worker's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedproc.data import Images
from fedproc.errors import Diverged, Failed

Record = dict[str, Any]


class Watched(Protocol):
    """A run under way."""

    @property
    def label(self) -> str: ...

    @property
    def rounds(self) -> int:
        """How many it is to have."""

    @property
    def round(self) -> int:
        """The last whole one."""

    @property
    def records(self) -> Sequence[Record]: ...

    @property
    def notes(self) -> list[str]:
        """What there is to say of it; whoever says it clears them."""

    @property
    def evaluated_on(self) -> str:
        """val or test."""

    @property
    def result(self) -> Record | None: ...

    @property
    def ended(self) -> Diverged | Failed | None:
        """What ended it early."""

    @property
    def path(self) -> Path | None: ...


class Watcher(Protocol):
    """Who wants to see the work go on. A class of one's own inherits from it and has what it needs of these. They are
    called between rounds, by the thread that trains: what they raise ends the work.
    """

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        """Before the first round. `about` says what is trained how, in one line."""
        return

    def update(self, run: Watched) -> None:
        """After a round of a run, whose record is the last of `run.records`; and once when a run has ended early, as
        `run.ended` says then: `run.records` may be empty where that was in the first round.
        """
        return

    def end(self) -> None:
        """After the last round, or when the work was stopped."""
        return


class Nobody(Watcher):
    """Watches nothing."""


class Everybody:
    """Several watchers as one; the first is told first."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        for watcher in self._watchers:
            watcher.begin(runs, about, notes)

    def update(self, run: Watched) -> None:
        for watcher in self._watchers:
            watcher.update(run)

    def noted(self, run: Watched) -> None:
        for watcher in self._watchers:
            tell(watcher, run)

    def end(self) -> None:
        for watcher in self._watchers:
            watcher.end()


def tell(watcher: Watcher, run: Watched) -> None:
    """There is something to say of a run, or it is where it was before, without a round: for those who show runs, and
    have `noted` for that. Others are told of rounds alone.
    """
    noted: Callable[[Watched], object] | None = getattr(watcher, "noted", None)
    if noted is not None:
        noted(run)


SHOWN = 3
FEW = 5  # steps per round


def few_steps(sizes: Sequence[int], names: Sequence[str], batch_size: int, epochs: int) -> list[str]:
    """A line where clients take so few steps per round that hardly anything is learnt."""
    steps = [max(1, size // batch_size) * epochs for size in sizes]
    few = [client for client, taken in enumerate(steps) if taken < FEW]
    if not few:
        return []
    least = min(few, key=lambda client: steps[client])
    who = f"{len(few)} of {len(sizes)} clients take fewer than {FEW} steps per round"
    fewest = f"client {names[least]} {steps[least]}, of {sizes[least]:,} images"
    return [f"{who} ({fewest}): take a smaller --batch-size than {batch_size}, or more --epochs than {epochs}"]


def unjudged(images: Images) -> list[str]:
    """A line where sites that train have no test images of their own."""
    if images.train.sites is None:
        return []
    train, test = (set() if split.sites is None else set(split.sites.tolist()) for split in (images.train, images.test))
    lacking = [images.site_names[site] for site in sorted(train - test)]
    if not lacking:
        return []
    who = f"{len(lacking)} of {len(train)} sites have no test images of their own ({', '.join(lacking[:SHOWN])}"
    more = f" and {len(lacking) - SHOWN} more" if len(lacking) > SHOWN else ""
    return [f"{who}{more}), so nothing will say what they gain; `fedproc data check` shows who has which"]


def headline(images: Images, sizes: Sequence[int], how: str) -> str:
    """What is trained, by clients of these sizes, and how."""
    counts = f"{len(images.train):,} training and {len(images.test):,} test images, {images.classes} classes"
    return f"{images.name}: {counts}; {len(sizes)} clients of {min(sizes):,} to {max(sizes):,} samples; {how}"
