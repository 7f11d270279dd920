"""The folder that results go to: one process at a time in it, and still the one that was taken."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from fedproc.errors import InputError, RunError
from fedproc.files import naming


class Lock:
    """One process at a time in a folder: a lock on the folder itself, which ends with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with naming(path):
            path.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise RunError(f"{path}: another process is at work in this folder; wait or take another --out") from error

    def check(self) -> None:
        """Refuse to go on where the folder was moved away or another one put in its place."""
        try:
            there = os.stat(self._path)
        except OSError as error:
            raise RunError(f"{self._path}: the folder is no longer there; nothing more was written") from error
        taken = os.fstat(self._handle)
        if (there.st_dev, there.st_ino) != (taken.st_dev, taken.st_ino):
            raise RunError(f"{self._path}: another folder was put in its place; nothing was written to that one")

    def release(self) -> None:
        os.close(self._handle)


def expect_below(folder: Path, path: Path) -> None:
    """Refuse a path below a folder that leads out of it through a link."""
    if not path.is_relative_to(folder):
        return
    for place in (path, *path.parents):
        if place == folder:
            return
        if place.is_symlink():
            raise InputError(f"{place}: a link, which is not followed; move it away, or take another --out")


def expect_folder(path: Path) -> None:
    """Refuse an --out that is a file, or lies below one."""
    for place in (path, *path.parents):
        if os.path.isfile(place):
            where = "" if place == path else f": {place}"
            raise InputError(f"--out {path}: a file is in the way, expected a folder{where}")
