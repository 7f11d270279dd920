"""Atomic writes: files are written next to their target, synced, then moved to it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedproc.errors import RunError

TEMPORARY = ".tmp-"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any failure to write into one sentence that names the path (full disk, read-only folder)."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror or error}") from error


def write_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a file that then takes the place of `path`."""
    temporary = path.with_name(TEMPORARY + path.name)
    with naming(path):
        try:
            fill(temporary)
            _sync(temporary)
            os.replace(temporary, path)
            _sync(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write into a folder that then takes the place of `path`."""
    temporary = path.with_name(TEMPORARY + path.name)
    with naming(path):
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            fill(temporary)
            for file in temporary.iterdir():
                _sync(file)
            _sync(temporary)
            if path.exists():
                shutil.rmtree(path)
            os.replace(temporary, path)
            _sync(path.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def sweep(folder: Path) -> None:
    """Remove what a killed process left half-written."""
    for stray in folder.glob(TEMPORARY + "*"):
        shutil.rmtree(stray) if stray.is_dir() else stray.unlink()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
