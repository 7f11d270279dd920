"""Checkpoints: named tensors as one flat buffer cut into shards, and a JSON that says what lies where.

checkpoint/round-000005/checkpoint.json       schema, values, tensors (dtype, shape, offset), shards (SHA-256)
                        shard-000.safetensors  under 16 MB each
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load
from safetensors.numpy import save as packed
from torch import Tensor

from fedproc.errors import RunError
from fedproc.runs.atomic import naming, sweep, write_folder

SCHEMA = 1
SHARD = 15_000_000
DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float64, torch.int64, torch.bool)}


class Damaged(RunError):
    """A checkpoint whose bytes are not those that were written."""


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

    write_folder(folder / f"round-{round_number:06d}", fill)


def _checksum(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def keep_last(folder: Path, count: int) -> None:
    """Remove all but the newest `count`."""
    with naming(folder):
        for old in _newest_first(folder)[count:]:
            shutil.rmtree(old)


def paths(folder: Path) -> list[Path]:
    """The whole checkpoints that are there, newest first."""
    return _newest_first(folder) if folder.is_dir() else []


def load_newest(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], list[str]] | None:
    """Tensors and values of the newest whole checkpoint, and what was wrong with newer ones; None if there are none."""
    if not folder.is_dir():
        return None
    sweep(folder)
    complaints: list[str] = []
    damaged: list[Path] = []
    for path in _newest_first(folder):
        try:
            found = _load(path)
        except Damaged as damage:
            complaints.append(str(damage))
            damaged.append(path)
            continue
        for useless in damaged:
            shutil.rmtree(useless)
        return *found, complaints
    if complaints:
        raise RunError(f"{'; '.join(complaints)}; no whole checkpoint is left, --fresh starts over")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*"), reverse=True)


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        index = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
        if index["schema"] != SCHEMA:
            raise Damaged(f"{path}: written with schema {index['schema']}, this version reads {SCHEMA}")
        if index.pop("checksum") != _checksum(index):
            raise Damaged(f"{path / 'checkpoint.json'}: wrong checksum")
        buffer = bytearray()
        for name, digest in index["shards"].items():
            content = (path / name).read_bytes()
            if hashlib.sha256(content).hexdigest() != digest:
                raise Damaged(f"{path / name}: wrong checksum")
            buffer += load(content)["bytes"].tobytes()
        tensors = {}
        for name, place in index["tensors"].items():
            dtype, shape = DTYPES[place["dtype"]], place["shape"]
            if prod(shape) == 0:
                tensors[name] = torch.zeros(shape, dtype=dtype)
            else:
                flat = torch.frombuffer(buffer, dtype=dtype, count=prod(shape), offset=place["offset"])
                tensors[name] = flat.view(shape).clone()
        return tensors, index["values"]
    except Damaged:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise Damaged(f"{path}: cannot be read ({type(error).__name__}: {error})") from error
