"""Files of one JSON line per round, each line with a checksum of itself and of all before it.

A line that was changed, lost or put elsewhere is noticed; the checkpoint confirms the last one. Lines of the first
format have no checksums and are read as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedproc.errors import InputError
from fedproc.files import naming, read_text, write_file
from fedproc.runs.schema import Schema, checked

Record = dict[str, Any]
KEY = "chain"
LENGTH = 16


def read_lines(path: Path, schema: type[Schema]) -> list[Record]:
    """All whole lines; a run under way may be writing the last."""
    return _read(path, schema)[0]


def last_checksum(path: Path, schema: type[Schema]) -> str:
    """The checksum of the last line, which stands for all; empty where there is none."""
    return _read(path, schema)[1]


def append_line(path: Path, record: Record, before: str) -> str:
    """Write a line after the one whose checksum is `before`; returns its own."""
    text, checksum = _chained(record, before)
    with naming(path), path.open("a", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    return checksum


def checksum_after(record: Record, before: str) -> str:
    """What `append_line` would return."""
    return _chained(record, before)[1]


def rewrite(path: Path, records: Sequence[Record]) -> str:
    """Make these the file's lines; returns the last one's checksum."""
    texts, checksum = [], ""
    for record in records:
        text, checksum = _chained(record, checksum)
        texts.append(text + "\n")
    content = "".join(texts)
    if (read_text(path) if path.exists() else "") != content:
        write_file(path, lambda temporary: temporary.write_text(content, encoding="utf-8"))
    return checksum


def checksum_of(records: Sequence[Record]) -> str:
    """What `rewrite` would return."""
    checksum = ""
    for record in records:
        _, checksum = _chained(record, checksum)
    return checksum


def _chained(record: Record, before: str) -> tuple[str, str]:
    text = json.dumps(record, allow_nan=False)
    checksum = _checksum(text, before)
    return f'{text[:-1]}, "{KEY}": "{checksum}"}}', checksum


def _checksum(text: str, before: str) -> str:
    return hashlib.sha256((before + text).encode()).hexdigest()[:LENGTH]


def _read(path: Path, schema: type[Schema]) -> tuple[list[Record], str]:
    if not path.exists():
        return [], ""
    try:
        texts = read_text(path).split("\n")[:-1]
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    lines: list[Record] = []
    before = ""
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: line {number} is not JSON: {error}") from error
        if not isinstance(line, dict):
            raise InputError(f"{path}: line {number}: expected an object, got {json.dumps(line)[:60]}")
        found = line.pop(KEY, None)
        end = f', "{KEY}": "{found}"}}'
        chained = found is not None
        if chained != bool(before) and number > 1:
            raise InputError(f"{path}: line {number}: has {'a' if chained else 'no'} checksum, unlike the one before")
        if chained and (not text.endswith(end) or found != _checksum(text[: -len(end)] + "}", before)):
            raise InputError(f"{path}: line {number}: its checksum is wrong: it, or a line before it, was changed")
        checked(f"{path}: line {number}", line, schema)
        lines.append(line)
        before = str(found) if chained else ""
    return lines, before
