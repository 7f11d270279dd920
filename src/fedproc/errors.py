"""What can go wrong, by whose turn it is: the person who typed it, or the machine that runs it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(word: str, known: Iterable[str], otherwise: str) -> str:
    """What to say after a name that there is not."""
    close = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {close[0]}?" if close else otherwise


class InputError(ValueError):
    """Bad input: one sentence that names the field, the value and what is allowed. Exit code 2."""


class RunError(RuntimeError):
    """The work itself failed (disk, network, divergence). Exit code 1."""


class Diverged(RunError):
    """No client gave a finite answer: there is nothing left to average."""

    def __init__(self, round_number: int, reason: str) -> None:
        self.round = round_number
        self.reason = reason
        super().__init__(
            f"diverged in round {round_number}: {reason}; "
            "try a smaller --lr, --normalize-z true, or a smaller --momentum"
        )
