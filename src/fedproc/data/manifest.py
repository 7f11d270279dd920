"""A CSV that lists images: path,label and optionally group, site and split.

Paths are relative to the file. All images of a group (a patient) stay on one side of the split; `site` is
where an image is held, for --partition natural; `split` is train or test.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedproc import streams
from fedproc.data.gather import Files, Item, gather
from fedproc.data.images import Images
from fedproc.data.pictures import Picture
from fedproc.errors import InputError
from fedproc.files import read_bytes

NEEDED = ("path", "label")
OPTIONAL = ("group", "site", "split")
Row = dict[str, str]


def read(path: Path, image_size: int | None, test_fraction: float, data_seed: int) -> Images:
    """The images a manifest lists."""
    return gather(find(path, test_fraction, data_seed), image_size)


def find(path: Path, test_fraction: float, data_seed: int) -> Files:
    """The image files a manifest lists, split by its own column or by groups."""
    rows = _rows(path)
    if "split" in rows[0]:
        sides = [row["split"] for row in rows]
        for number, side in enumerate(sides, start=2):
            if side not in ("train", "test"):
                raise InputError(f"{path}, line {number}: split is {side!r}, expected train or test")
        _check_groups(path, rows)
    else:
        sides = _sides(path, rows, test_fraction, data_seed)
    items = [
        Item(Picture.at(path.parent / row["path"]), row["label"], row.get("site"), row.get("group")) for row in rows
    ]
    train = [item for item, side in zip(items, sides, strict=True) if side == "train"]
    test = [item for item, side in zip(items, sides, strict=True) if side == "test"]
    strange = sorted({item.label for item in test} - {item.label for item in train})
    if strange:
        raise InputError(f"{path}: no training image of class {strange[0]}; it needs images of two groups at least")
    return Files(str(path), train, test)


def _check_groups(path: Path, rows: Sequence[Row]) -> None:
    side_of: dict[str, str] = {}
    for number, row in enumerate(rows, start=2):
        group = row.get("group")
        if group is not None and side_of.setdefault(group, row["split"]) != row["split"]:
            raise InputError(f"{path}, line {number}: group {group} is in train and in test; keep it on one side")


def _rows(path: Path) -> list[Row]:
    try:
        with io.StringIO(read_bytes(path).decode("utf-8-sig"), newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = [name.strip() for name in reader.fieldnames or []]
            _check_header(path, names)
            reader.fieldnames = names
            rows = [_row(path, reader.line_num, row, names) for row in reader]
    except InputError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: not a readable CSV file: {reason}") from error
    if not rows:
        raise InputError(f"{path}: lists no images")
    twice = [name for name, count in Counter(os.path.normpath(row["path"]) for row in rows).items() if count > 1]
    if twice:
        raise InputError(f"{path}: lists {twice[0]} more than once")
    return rows


def _check_header(path: Path, names: Sequence[str]) -> None:
    strange = sorted(set(names) - {*NEEDED, *OPTIONAL})
    missing = [name for name in NEEDED if name not in names]
    if missing or strange:
        what = f"has no column {missing[0]}" if missing else f"has a column {strange[0]!r}"
        raise InputError(f"{path}: {what}; expected path,label and optionally group, site, split")


def _row(path: Path, number: int, row: Row, names: Sequence[str]) -> Row:
    for name in names:
        value = row.get(name)
        if not isinstance(value, str) or not value.strip():
            raise InputError(f"{path}, line {number}: {name} is empty")
        row[name] = value.strip()
    if None in row:
        raise InputError(f"{path}, line {number}: more fields than the {len(names)} of the header")
    if not (path.parent / row["path"]).is_file():
        raise InputError(f"{path}, line {number}: {path.parent / row['path']}: no such file")
    return row


def _sides(path: Path, rows: Sequence[Row], fraction: float, seed: int) -> list[str]:
    """train or test of each row: groups in the order of their streams go to test until each class has its share."""
    groups: dict[str, list[Row]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.get("group", f"\0{place}"), []).append(row)
    main = {name: Counter(row["label"] for row in members).most_common(1)[0][0] for name, members in groups.items()}
    chosen: set[str] = set()
    for place, label in enumerate(sorted(set(main.values()))):
        names = [name for name in groups if main[name] == label]
        wanted = fraction * sum(len(groups[name]) for name in names)
        order = streams.order(streams.key(seed, streams.Purpose.TEST_SPLIT, place), len(names)).tolist()
        taken = 0
        for i in order[:-1]:  # one group at least stays for training
            if taken >= wanted:
                break
            chosen.add(names[i])
            taken += len(groups[names[i]])
    if not chosen:
        raise InputError(f"{path}: one group per class; a split that keeps groups together needs two of some class")
    return ["test" if row.get("group", f"\0{place}") in chosen else "train" for place, row in enumerate(rows)]
