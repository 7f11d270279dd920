"""The parser of words. It knows no command and loads nothing, so that `fedproc --help` answers at once.

argparse and not a larger library: types, defaults and messages all come from the Experiment, so a parser
only has to split words into names and values, strictly.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from fedproc.errors import InputError, meant, suggestion


class Parser(argparse.ArgumentParser):
    """Raises errors of one sentence; takes no abbreviations. `fill` adds its flags once they are needed, where those
    take long to load.
    """

    def __init__(self, *args: Any, fill: Callable[[Parser], object] | None = None, **kwargs: Any) -> None:
        self._fill = fill
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("argument ").replace("invalid choice", "not known")
        if found := re.search(r"not known: '?([^' ]+)'? \(choose from (.*)\)", words):
            words += meant(found[1], re.findall(r"[\w.+-]+", found[2]))
        raise InputError(words.replace("expected one argument", "expected a value after it"))

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        self.filled()
        return super().parse_known_args(*args, **kwargs)

    def filled(self) -> Parser:
        """This parser, with all of its flags."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        return self

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help that cannot be written is told, where argparse would be silent."""
        if message:
            (file or sys.stderr).write(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        sys.stdout.flush()
        super().exit(status, message)

    def parse_strictly(self, words: list[str], whole: Callable[[], Parser]) -> argparse.Namespace:
        """Like parse_args, but names the first word it does not understand and suggests a flag, of any command that the
        whole parser has.
        """
        parsed: argparse.Namespace
        parsed, rest = self.parse_known_args(words)
        if rest:
            word = rest[0].partition("=")[0]
            known = [w for parser in whole()._parsers() for w in parser._option_string_actions]
            hint = suggestion(word, known, "--help lists what there is")
            if word in known:
                hint = "other commands have it; --help lists what this one has"
            raise InputError(f"{rest[0]}: not understood; {hint}")
        return parsed

    def _parsers(self) -> list[argparse.ArgumentParser]:
        """This one and all below, with all of their flags."""
        found: list[argparse.ArgumentParser] = [self.filled()]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for child in action.choices.values():
                    found += child._parsers() if isinstance(child, Parser) else [child]
        return found
