"""Checkpoints: named tensors as one flat buffer cut into shards, and a JSON that says what lies where.

checkpoint/round-000005/checkpoint.json       schema, values, tensors (dtype, shape, offset), shards (SHA-256)
                        shard-000.safetensors  under 16 MB each
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load
from safetensors.numpy import save as packed
from torch import Tensor

from fedproc.errors import InputError, RunError, with_flags
from fedproc.files import naming, read_bytes, sweep, write_file, write_folder
from fedproc.runs.made import PART, ROUND
from fedproc.runs.schema import CheckpointFile, CheckpointValues, checked, read_json

SCHEMA = 2
SHARD = 15_000_000
KINDS = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
DTYPES = {str(d).removeprefix("torch."): d for d in KINDS}


class Damaged(RunError):
    """A checkpoint whose bytes are not those that were written."""


class OtherFormat(RunError):
    """A checkpoint of another version of the format."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint held, and what was wrong with newer ones."""

    tensors: dict[str, Tensor]
    values: CheckpointValues
    complaints: list[str]


def save(folder: Path, round_number: int, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write the checkpoint of a round beside the others, whole or not at all."""

    def fill(target: Path) -> None:
        buffer = bytearray()
        places: dict[str, Any] = {}
        for name, tensor in tensors.items():
            content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            dtype = str(tensor.dtype).removeprefix("torch.")
            places[name] = {"dtype": dtype, "shape": list(tensor.shape), "offset": len(buffer)}
            buffer += content
        shards = {}
        for number, start in enumerate(range(0, len(buffer), SHARD)):
            name = f"shard-{number:03d}.safetensors"
            content = packed({"bytes": np.frombuffer(buffer[start : start + SHARD], np.uint8)})
            (target / name).write_bytes(content)
            shards[name] = hashlib.sha256(content).hexdigest()
        index = {"schema": SCHEMA, "values": dict(values), "tensors": places, "shards": shards}
        index["checksum"] = _checksum(index)
        (target / "checkpoint.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")

    write_folder(folder / f"round-{round_number:06d}", fill, remove)


def _checksum(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def keep_last(folder: Path, count: int) -> None:
    """Remove all but the newest `count`."""
    with naming(folder):
        for old in _newest_first(folder)[count:]:
            remove(old)


def paths(folder: Path) -> list[Path]:
    """The whole checkpoints that are there, newest first."""
    return _newest_first(folder)


def remove(path: Path) -> None:
    """Delete a checkpoint; what is not its own stays, and so does the folder then."""
    if not path.is_dir():
        return
    for entry in list(path.iterdir()):
        if re.fullmatch(PART, entry.name) and (not entry.is_dir() or entry.is_symlink()):
            entry.unlink()
    if not any(path.iterdir()):
        path.rmdir()


def load_newest(
    folder: Path,
    up_to: int,
    complaint: Callable[[CheckpointValues], str | None] = lambda values: None,
    told: int = 0,
) -> Checkpoint | None:
    """The newest whole checkpoint of round `up_to` or before; None if there are none. `complaint` says what is wrong
    with what lies elsewhere and belongs to it. One before round `told` is refused: what came after it must not be done
    again.
    """
    if not folder.is_dir():
        _expect_told(folder, 0, told, [])
        return None
    sweep(folder, ROUND)
    complaints: list[str] = []
    damaged: list[Path] = []
    for path in _newest_first(folder):
        try:
            tensors, values = _load(path)
        except Damaged as damage:
            complaints.append(str(damage))
            damaged.append(path)
            continue
        if values.round > up_to:
            continue
        if (wrong := complaint(values)) is not None:
            complaints.append(wrong)
            damaged.append(path)
            continue
        _expect_told(folder, values.round, told, complaints)
        for useless in damaged:
            remove(useless)
        return Checkpoint(tensors, values, complaints)
    if complaints:
        raise RunError(f"{'; '.join(complaints)}; no whole checkpoint is left, --fresh starts over")
    _expect_told(folder, 0, told, [])
    return None


def _expect_told(folder: Path, found: int, told: int, complaints: Sequence[str]) -> None:
    if found < told:
        why = "; ".join(complaints) or f"{folder}: no checkpoint of round {told} is there"
        raise RunError(
            f"{why}; round {found + 1} is on record, and done again its noise would be another; --fresh starts over"
        )


def confirm(folder: Path, round_number: int, lines: Mapping[str, Sequence[str]]) -> None:
    """Let the checkpoint of a round, if it is there, accept these checksums of lines as well."""
    path = folder / f"round-{round_number:06d}" / "checkpoint.json"
    index = read_json(path)
    if index is None:
        return
    held = index["values"]["lines"]
    index["values"]["lines"] = {
        name: sorted({*held.get(name, []), *lines.get(name, [])}) for name in sorted({*held, *lines})
    }
    del index["checksum"]
    index["checksum"] = _checksum(index)
    write_file(path, lambda temporary: temporary.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8"))


def _newest_first(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(ROUND, path.name) and not _foreign(path)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("round-")), reverse=True)


def _foreign(path: Path) -> bool:
    """Whether a folder holds a person's own files alone: what is left of a checkpoint that was removed."""
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return bool(names) and not any(re.fullmatch(PART, name) for name in names)


def _load(path: Path) -> tuple[dict[str, Tensor], CheckpointValues]:
    try:
        index = read_json(path / "checkpoint.json") or {}
        if (version := index.get("schema")) != SCHEMA and isinstance(version, int):
            raise OtherFormat(
                f"{path}: written by another version of fedproc (format {version}, this one has {SCHEMA}), which this "
                "one cannot continue; its results can be read, --fresh starts over"
            )
        whole = checked(path / "checkpoint.json", index, CheckpointFile)
        if index.pop("checksum") != _checksum(index):
            raise Damaged(f"{path / 'checkpoint.json'}: wrong checksum")
        buffer = bytearray()
        for name, digest in whole.shards.items():
            if not re.fullmatch(PART, name):
                raise Damaged(f"{path / 'checkpoint.json'}: names a shard {name}")
            content = read_bytes(path / name)
            if hashlib.sha256(content).hexdigest() != digest:
                raise Damaged(f"{path / name}: wrong checksum")
            buffer += load(content)["bytes"].tobytes()
        tensors = {}
        for name, place in whole.tensors.items():
            dtype, shape = DTYPES[place.dtype], place.shape
            if prod(shape) == 0:
                tensors[name] = torch.zeros(shape, dtype=dtype)
            else:
                flat = torch.frombuffer(buffer, dtype=dtype, count=prod(shape), offset=place.offset)
                tensors[name] = flat.view(shape).clone()
        return tensors, whole.values
    except (Damaged, OtherFormat):
        raise
    except InputError as error:
        raise Damaged(with_flags(error)) from error
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RuntimeError, SafetensorError) as error:
        raise Damaged(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
