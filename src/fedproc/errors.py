"""What can go wrong: bad input, or the work itself.

Texts are written with flags (`--min-size 3: ...`), which is what the command line prints; in Python they have the
fields' names instead (`min_size 3: ...`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:[.-][a-z0-9]+)*)")


def suggestion(word: str, known: Iterable[str], otherwise: str, alike: float = 0.6) -> str:
    """What to say after an unknown name: the known one it resembles, if there is one."""
    close = difflib.get_close_matches(word, sorted(known), 1, alike)
    return f"did you mean {close[0]}?" if close else otherwise


def meant(word: object, known: Iterable[str]) -> str:
    """The end of a sentence on a value that is none of the known: the one it resembles, if there is one."""
    hint = suggestion(str(word), known, "", 0.7)
    return f"; {hint}" if hint else ""


class _Worded(Exception):
    """An error whose text names fields: as flags on the command line, by their names in Python."""

    @property
    def with_flags(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        parts = self.with_flags.split("`")  # what is quoted is a command, and stays
        parts[::2] = [FLAG.sub(lambda found: found.group(1).replace("-", "_"), part) for part in parts[::2]]
        return "`".join(parts)


def with_flags(error: BaseException) -> str:
    """An error's text as the command line prints it."""
    return error.with_flags if isinstance(error, _Worded) else str(error)


class InputError(_Worded, ValueError):
    """Bad input: one sentence that names the field, the value and what is allowed. Exit code 2."""


class RunError(_Worded, RuntimeError):
    """The work itself failed (disk, network, divergence). Exit code 1. Where a person's own code failed, `trace` is the
    traceback into it, as text, if it is known.
    """

    trace = ""


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

    def __init__(self, round_number: int, reason: str, trace: str = "") -> None:
        self.round = round_number
        self.reason = reason
        self.trace = trace
        super().__init__(f"failed in round {round_number}: {reason}")
