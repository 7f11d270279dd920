"""Those who want to see the work go on, and what they see of a run: in this process, or in a worker's."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Who wants to see the work go on. `about` says what is trained how, in one line."""

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None: ...

    def update(self, run: Watched) -> None: ...

    def end(self) -> None: ...


class Nobody:
    """Watches nothing."""

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None: ...

    def update(self, run: Watched) -> None: ...

    def end(self) -> None: ...


FEW = 5  # steps a round


def few_steps(sizes: Sequence[int], names: Sequence[str], batch_size: int, epochs: int) -> list[str]:
    """A line where clients take so few steps a round that hardly anything is learnt."""
    steps = [max(1, size // batch_size) * epochs for size in sizes]
    few = [client for client, taken in enumerate(steps) if taken < FEW]
    if not few:
        return []
    least = min(few, key=lambda client: steps[client])
    who = f"{len(few)} of {len(sizes)} clients take fewer than {FEW} steps a round"
    fewest = f"client {names[least]} {steps[least]}, of {sizes[least]:,} images"
    return [f"{who} ({fewest}): take a smaller --batch-size than {batch_size}, or more --epochs than {epochs}"]


def headline(images: Images, sizes: Sequence[int], how: str) -> str:
    """What is trained, by clients of these sizes, and how."""
    counts = f"{len(images.train):,} training and {len(images.test):,} test images, {images.classes} classes"
    return f"{images.name}: {counts}; {len(sizes)} clients of {min(sizes):,} to {max(sizes):,} samples; {how}"
