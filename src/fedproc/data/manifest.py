"""A CSV that lists images: path,label and optionally group, site and split.

Paths are relative to the file. All images of a group (a patient) stay on one side of the split; `site` is
where an image is held, for --partition natural; `split` is train or test, or empty where a share is to be drawn.
Fields are separated by commas, semicolons, tabs or bars: by what the header has.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from fedproc.data.gather import Files, Item
from fedproc.data.names import normal
from fedproc.data.pictures import Picture
from fedproc.data.problems import Complain, Problem, refuse
from fedproc.data.split import drawn_for_test
from fedproc.errors import InputError
from fedproc.files import read_bytes

NEEDED = ("path", "label")
OPTIONAL = ("group", "site", "split")
DELIMITERS = (",", ";", "\t", "|")
Row = dict[str, str]
Rows = list[tuple[int, Row]]  # each with its line


def find(path: Path, test_fraction: float, data_seed: int, complain: Complain = refuse) -> Files:
    """The image files a manifest lists, split by its own column or by groups."""
    rows = [each for each in _rows(path, complain) if _has_side(path, *each, complain)]
    items = [_item(path, row) for _, row in rows]
    tested = [row.get("split") == "test" for _, row in rows]
    _check_groups(path, rows, complain)
    undecided = [place for place, (_, row) in enumerate(rows) if not row.get("split")]
    if undecided:
        undivided = [items[place] for place in undecided]
        drawn = drawn_for_test(undivided, test_fraction, data_seed, rounded=any(item.site for item in undivided))
        for place, side in zip(undecided, drawn, strict=True):
            tested[place] = side
        if not any(tested):
            text = f"{path}: one group per class; a split that keeps groups together needs two of some class"
            complain(Problem("no test images", text, (str(path),)))
    train = [item for item, side in zip(items, tested, strict=True) if not side]
    test = [item for item, side in zip(items, tested, strict=True) if side]
    return Files(str(path), train, test, bool(undecided)).judge(complain)


def _item(path: Path, row: Row) -> Item:
    site, group = (normal(row[name]) if name in row else None for name in ("site", "group"))
    return Item(Picture.at(path.parent / row["path"]), normal(row["label"]), site, group, row["path"])


def _has_side(path: Path, line: int, row: Row, complain: Complain) -> bool:
    side = row.get("split", "")
    if side in ("train", "test", ""):
        return True
    expected = "expected train, test, or nothing where a share is to be drawn"
    complain(Problem("a bad line", f"{path}, line {line}: split is {side!r}, {expected}"))
    return False


def _check_groups(path: Path, rows: Rows, complain: Complain) -> None:
    side_of: dict[str, str] = {}
    told = set()
    for line, row in rows:
        group, side = row.get("group"), row.get("split", "")
        if group is not None and (other := side_of.setdefault(group, side)) != side and group not in told:
            told.add(group)
            sides = "in train and in test" if side and other else f"in {side or other}, and in lines without a side"
            text = f"{path}, line {line}: group {group} is {sides}; keep it on one side"
            complain(Problem("a group on both sides", text, (row["path"],)))


def _rows(path: Path, complain: Complain) -> Rows:
    rows: Rows = []
    bad = False
    try:
        with io.StringIO(read_bytes(path).decode("utf-8-sig"), newline="") as file:
            delimiter = _delimiter(file.readline())
            file.seek(0)
            reader = csv.DictReader(file, strict=True, delimiter=delimiter)
            names = [name.strip() for name in reader.fieldnames or []]
            _check_header(path, names)
            reader.fieldnames = names
            for row in reader:
                if (wrong := _wrong(path, row, names)) is None:
                    rows.append((reader.line_num, {name: row[name].strip() for name in names}))
                else:
                    bad = True
                    complain(Problem("a bad line", f"{path}, line {reader.line_num}: {wrong}"))
    except InputError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, UnicodeDecodeError):
            reason = f"byte {error.start} is no UTF-8 ({error.reason}); save it as UTF-8"
        raise InputError(f"{path}: not a readable CSV file: {reason}") from error
    if not rows and not bad:  # bad lines were complained about
        raise InputError(f"{path}: lists no images")
    seen: set[str] = set()
    once: Rows = []
    for line, row in rows:
        place = os.path.normpath(row["path"])
        if place in seen:
            complain(Problem("listed twice", f"{path}: lists {place} more than once (line {line})", (place,)))
        else:
            once.append((line, row))
        seen.add(place)
    return once


def _delimiter(header: str) -> str:
    """What separates the columns that must be there; a comma where nothing does."""
    for delimiter in DELIMITERS:
        if {*NEEDED} <= {name.strip().strip('"') for name in header.lstrip("\ufeff").split(delimiter)}:
            return delimiter
    return ","


def _check_header(path: Path, names: Sequence[str]) -> None:
    strange = sorted(set(names) - {*NEEDED, *OPTIONAL})
    missing = [name for name in NEEDED if name not in names]
    if missing or strange:
        what = f"has no column {missing[0]}" if missing else f"has a column {strange[0]!r}"
        raise InputError(f"{path}: {what}; expected path,label and optionally group, site, split")


def _wrong(path: Path, row: dict[str, str], names: Sequence[str]) -> str | None:
    for name in names:
        value = row.get(name)
        if not isinstance(value, str) or not (value.strip() or name == "split"):
            return f"{name} is empty"
    if None in row:
        return f"more fields than the {len(names)} of the header"
    where = path.parent / row["path"].strip()
    return None if where.is_file() else f"{where}: no such file"
