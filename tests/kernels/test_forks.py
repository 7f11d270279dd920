"""What is done at once while a step is captured, on streams that only write down who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from fedproc.kernels import forks


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


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
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


def test_each_function_has_a_stream_of_its_own_that_begins_and_ends_with_the_main_one(streams: Streams) -> None:
    found = forks.at_once([lambda: streams.current.number] * 3)
    assert found == [1, 2, 0]
    assert streams.waits == [(1, 0), (2, 0), (0, 1), (0, 2)]


def test_parts_of_what_is_done_at_once_are_done_in_turn(streams: Streams) -> None:
    def inner() -> tuple[int, int]:
        return forks.side_by_side(lambda: streams.current.number, lambda: streams.current.number)

    assert forks.at_once([inner, inner]) == [(1, 1), (0, 0)]
    assert inner() == (2, 0)  # by itself it forks


def test_a_failure_leaves_no_stream_behind_and_later_steps_fork_again(streams: Streams) -> None:
    def fails() -> int:
        raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        forks.at_once([lambda: 1, fails, lambda: 2])
    assert streams.waits[-2:] == [(0, 1), (0, 2)]
    assert forks.at_once([lambda: streams.current.number] * 2) == [3, 0]


def test_in_turn_takes_no_stream(streams: Streams) -> None:
    with forks.in_turn():
        assert forks.at_once([lambda: streams.current.number] * 2) == [0, 0]
    assert streams.made == 1 and streams.waits == []
