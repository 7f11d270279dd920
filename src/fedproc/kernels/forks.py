"""Parallel branches of a captured step: forked onto separate CUDA streams, and joined again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

A = TypeVar("A")
B = TypeVar("B")

_allowed = True


def side_by_side(one: Callable[[], A], other: Callable[[], B]) -> tuple[A, B]:
    """`at_once` of two functions with results of different types."""
    functions: list[Callable[[], Any]] = [one, other]
    first, second = at_once(functions)
    return first, second


def at_once(functions: Sequence[Callable[[], A]]) -> list[A]:
    """The results of independent functions, which run in parallel in a step that is being captured and in its backward
    pass. What they read must live until all are done: memory that is freed before is used again. For the same reason
    a function that runs in parallel with others does not run its own parts in parallel.
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
    finally:  # a capture with open branches cannot end
        for side in sides:
            main.wait_stream(side)
    return found


@contextmanager
def in_turn() -> Iterator[None]:
    """Within, `at_once` runs functions one after the other, in all threads: a backward pass has another one."""
    global _allowed
    before, _allowed = _allowed, False
    try:
        yield
    finally:
        _allowed = before
