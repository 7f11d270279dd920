"""What is wrong with a person's images. Whoever reads them for training refuses the first thing that would stop it;
`fedproc data check` collects all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from fedproc.errors import InputError


@dataclass(frozen=True)
class Problem:
    """One thing: its kind in a few words, one sentence, the files it is about, and whether training stops at it."""

    kind: str
    text: str
    paths: Sequence[str] = ()
    stops: bool = True


Complain = Callable[[Problem], None]


def refuse(problem: Problem) -> NoReturn:
    """Stop at the first."""
    raise InputError(problem.text)
