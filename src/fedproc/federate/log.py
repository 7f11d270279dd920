"""The readable log of a kit: lines that all its processes append to, and that its command in the foreground shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

FILE = "fedproc.log"
LARGEST = 8 << 20  # then the file is put aside, and the one put aside before is dropped


def printable(text: str) -> str:
    """One line that does nothing to a terminal, whoever sent it."""
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def say(kit: Path, text: str) -> None:
    """Append one line; lines of several processes do not mix."""
    line = f"{datetime.now():%Y-%m-%d %H:%M:%S} {printable(text)}\n".encode()
    handle = os.open(kit / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


class Tail:
    """What is appended from now on."""

    def __init__(self, kit: Path) -> None:
        self._path = kit / FILE
        if self._path.exists() and self._path.stat().st_size > LARGEST:
            os.replace(self._path, self._path.with_suffix(".log.1"))
        self._path.touch(mode=0o600)
        self._file = self._path.open("rb", buffering=0)
        self._file.seek(0, os.SEEK_END)
        self._begun = b""  # of a line that has not ended yet

    def lines(self) -> Iterator[str]:
        """The whole lines since the last call."""
        *whole, self._begun = (self._begun + self._file.read()).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")

    def close(self) -> None:
        self._file.close()
