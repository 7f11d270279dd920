"""What can go wrong, by whose turn it is: the person who typed it, or the machine that runs it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(word: str, known: Iterable[str], otherwise: str, alike: float = 0.6) -> str:
    """What to say after an unknown name: the known one it resembles, if there is one."""
    close = difflib.get_close_matches(word, sorted(known), 1, alike)
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


class MethodError(RunError):
    """A method does not keep its contract, or its code raised: which one, in which hook."""

    def __init__(self, method: str, hook: str | None, reason: str, source: object = None) -> None:
        self.method, self.hook, self.reason = method, hook, reason
        self.source = source  # the half of the method that was called
        where = f"method {method}" + (f", hook `{hook}`" if hook else "")
        super().__init__(f"{where}: {reason}")


class Failed(RunError):
    """A run that a person's own code ended."""

    def __init__(self, round_number: int, reason: str) -> None:
        self.round = round_number
        self.reason = reason
        super().__init__(f"failed in round {round_number}: {reason}")
