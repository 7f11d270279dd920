"""What a captured step does at once: forked onto streams of their own, and joined again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")

_allowed = True


def side_by_side(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """`at_once` of two functions that give different things."""
    functions: list[Callable[[], Any]] = [one, other]
    first, second = at_once(functions)
    return first, second


def at_once(functions: Sequence[Callable[[], A]]) -> list[A]:
    """What functions give that do not need each other: a step that is being captured does them at once, and so does its
    backward pass. What they read must live until all are done: memory that is given back before is taken again. For the
    same reason a function that is done at once with others does not do its own parts at once.
    """
    if not functions:
        return []
    *others, last = functions
    if not (others and _allowed and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return [function() for function in functions]
    main, sides = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in others]
    for side in sides:
        side.wait_stream(main)
    found = []
    try:
        with in_turn():
            for side, function in zip(sides, others, strict=True):
                with torch.cuda.stream(side):
                    found.append(function())
            found.append(last())
    finally:  # a capture that is not whole could not even end
        for side in sides:
            main.wait_stream(side)
    return found


@contextmanager
def in_turn() -> Iterator[None]:
    """Within, `at_once` does one after the other, in whatever thread: a backward pass has one of its own."""
    global _allowed
    before, _allowed = _allowed, False
    try:
        yield
    finally:
        _allowed = before
