"""Streams that only write down who waits for whom, in the place of torch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch


class Streams:
    """Stands for torch.cuda: the current stream, and every wait in its order."""

    def __init__(self) -> None:
        self.made = 0
        self.waits: list[tuple[int, int]] = []
        self.current = self.new()

    def new(self) -> Stream:
        self.made += 1
        return Stream(self, self.made - 1)

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Stream:
    def __init__(self, home: Streams, number: int) -> None:
        self.home, self.number = home, number

    def wait_stream(self, other: Stream) -> None:
        self.home.waits.append((self.number, other.number))


def written(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """As if a step were being captured."""
    made = Streams()
    for name, value in {
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: True,
        "current_stream": lambda: made.current,
        "Stream": made.new,
        "stream": made.on,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return made
