"""Atomic writes, and reads that end: files are written next to their target, synced, then moved to it; a link or
anything else that is no plain file is neither read from where a stranger may have put it, nor replaced.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedproc.errors import InputError, RunError

TEMPORARY = ".tmp-"
KINDS = ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any failure to write into one sentence that names the path (full disk, read-only folder)."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def kind_of(path: Path) -> str | None:
    """What a path is where it is neither a plain file nor nothing; links are not followed."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(mode):
        return None
    return next((word for is_kind, word in KINDS if is_kind(mode)), "a device")


def read_bytes(path: Path) -> bytes:
    """A plain file's content, or what a link to one leads to: a pipe would keep us waiting, a device never end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = next((word for is_kind, word in KINDS if is_kind(mode)), "a device")
        raise InputError(f"{path}: {what}, expected a file")
    return path.read_bytes()


def read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8").replace("\r\n", "\n")


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a file that then takes the place of `path`, which may be a plain file or nothing."""
    temporary = path.with_name(TEMPORARY + path.name)
    with naming(path):
        if (what := kind_of(path)) is not None:
            raise InputError(f"{path}: {what}, which is not replaced; expected the name of a file")
        try:
            temporary.unlink(missing_ok=True)  # a link left here would be written through
            fill(temporary)
            _sync(temporary)
            move(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_folder(path: Path, fill: Callable[[Path], object], remove: Callable[[Path], object]) -> None:
    """Let `fill` write into a folder that then takes the place of `path`, of which `remove` deletes what is ours."""
    temporary = path.with_name(TEMPORARY + path.name)
    with naming(path):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            fill(temporary)
            for file in temporary.iterdir():
                _sync(file)
            _sync(temporary)
            remove(path)
            if path.is_dir() and (others := sorted(entry.name for entry in path.iterdir())):
                raise InputError(f"{path}: holds {others[0]}, which is not the run's; move it away")
            move(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def sync_all(folder: Path) -> None:
    """Put a folder, and all that is in it, on the disk."""
    for path in (*folder.rglob("*"), folder):
        _sync(path)


def move(path: Path, target: Path) -> None:
    """Rename what is synced, within its folder; a power failure after this does not undo it."""
    os.replace(path, target)
    _sync(target.parent)


def sweep(folder: Path, names: str = ".*") -> None:
    """Remove what a killed process left half-written of files and folders with such names."""
    for stray in folder.glob(TEMPORARY + "*"):
        if re.fullmatch(names, stray.name.removeprefix(TEMPORARY)):
            shutil.rmtree(stray) if stray.is_dir() and not stray.is_symlink() else stray.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
