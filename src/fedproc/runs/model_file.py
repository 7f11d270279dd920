"""A model file: named tensors as safetensors, with one JSON of metadata that says how they are used, and a checksum.

What a file says of itself is checked against its header, shape by shape, before anything as large is made of it.
Files of the first version have no checksum; they are read with all the other checks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedproc.data.augment import Normalisation
from fedproc.errors import InputError
from fedproc.files import read_bytes
from fedproc.networks import NetworkSpec, shapes
from fedproc.runs.checkpoint import DTYPES
from fedproc.runs.schema import Schema, checked

SCHEMA = 1
KEY = "fedproc"  # one metadata key only: safetensors orders several differently in each process
BESIDE = ("prototypes", "known")
MOST_SIDE, MOST_CHANNELS, MOST_WIDTH = 4096, 64, 1 << 14
LONGEST_NAME = 1000
HEADER = 8
AGAIN = "remove it, and the command of its run makes it again"
NAMES = {"F32": "float32", "F64": "float64", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "BOOL": "bool"}

Header = dict[str, tuple[str, tuple[int, ...]]]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class About(Schema):
    """What a model file says of the network and of the images it wants."""

    class_names: list[Annotated[str, Field(max_length=LONGEST_NAME)]] = Field(min_length=1)
    mean: list[Finite]
    std: list[Annotated[Finite, Field(gt=0)]]
    network: str
    width: int = Field(ge=1, le=MOST_WIDTH)
    norm: Literal["batch", "group"]
    channels: int = Field(ge=1, le=MOST_CHANNELS)
    image_size: int = Field(ge=1, le=MOST_SIDE)
    normalize_z: bool
    dtype: Literal["float32", "float64"]
    encoder_source: str | None = None  # of a person's own encoder: form and SHA-256; earlier files have none
    checksum: str | None = None

    @property
    def spec(self) -> NetworkSpec:
        return NetworkSpec(
            name=self.network,
            width=self.width,
            channels=self.channels,
            side=self.image_size,
            classes=len(self.class_names),
            normalize_z=self.normalize_z,
            dtype=DTYPES[self.dtype],
            norm=self.norm,
        )


def packed(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> bytes:
    """The content of a model file."""
    ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    about = {**description, "checksum": checksum(ready, description)}
    content: bytes = save(ready, metadata={KEY: json.dumps(about)})
    return content


def checksum(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> str:
    """Over the description and every tensor's name, type, shape and bytes."""
    said = {name: value for name, value in description.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_about(path: Path) -> tuple[About, dict[str, Any], Header]:
    """What a file says of itself, as its schema and as it stands, and type and shape of each tensor; none is read."""
    if path.exists() and not path.is_file():
        read_bytes(path)  # which says what it is
    try:
        with safe_open(path, "pt") as file:
            raw = json.loads((file.metadata() or {})[KEY])
            header: Header = {}
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                kind = part.get_dtype()
                header[name] = (NAMES.get(kind, kind), tuple(part.get_shape()))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a model of a fedproc run: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else None
        raise InputError(f"{path}: written with schema {found}, this version reads {SCHEMA}")
    about = checked(path, raw, About)
    for name in ("mean", "std"):
        if len(getattr(about, name)) != about.channels:
            raise InputError(f"{path}: {name} {getattr(about, name)}: expected one number for each channel")
    _expect_finite(path, about)
    if len(set(about.class_names)) != len(about.class_names):
        raise InputError(f"{path}: class_names: expected each name once")
    return about, raw, header


def _expect_finite(path: Path, about: About) -> None:
    """Refuse a mean or deviation that is lost in single precision, or makes pixels infinite there."""
    for name, least in (("mean", -math.inf), ("std", 0.0)):
        for value in getattr(about, name):
            if not (math.isfinite(as_used := float(torch.tensor(value, dtype=torch.float32))) and as_used > least):
                expected = "a finite number" if name == "mean" else "a finite number above 0"
                raise InputError(f"{path}: {name} {value:g}: expected {expected} in single precision; {AGAIN}")
    middle, scale = Normalisation(tuple(about.mean), tuple(about.std)).levels(torch.float32, torch.device("cpu"))
    pixels = (torch.tensor([0.0, 255.0]) - middle) * scale
    if not bool(torch.isfinite(pixels).all()):
        what = f"mean {about.mean} and std {about.std}: normalised pixels are not finite"
        raise InputError(f"{path}: {what}; expected those of images from 0 to 1; {AGAIN}")


def check_shapes(path: Path, spec: NetworkSpec, header: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Compare the header with what the description needs. Of a person's own encoder the head alone is known."""
    here = dict(header)
    classes = spec.classes
    if (found := here.get("classifier.weight")) is None or found[1][:1] != (classes,):
        has = "none" if found is None else str(found[1])
        raise InputError(f"{path}: class_names: {classes} names, but classifier.weight is {has}")
    beside = {name: here.pop(name) for name in BESIDE if name in here}
    if beside:
        wanted: Header = {"prototypes": (str(spec.dtype).removeprefix("torch."), (classes, found[1][-1]))}
        wanted["known"] = ("bool", (classes,))
        _compare(path, wanted, beside)
    if not spec.foreign:
        _compare(path, shapes(spec), here)


def _compare(
    path: Path, wanted: Mapping[str, tuple[str, tuple[int, ...]]], found: Mapping[str, tuple[str, tuple[int, ...]]]
) -> None:
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            shown = [f"{of[name][0]} {of[name][1]}" if name in of else "nothing" for of in (found, wanted)]
            raise InputError(f"{path}: {name[:60]} is {shown[0]}, its description needs {shown[1]}")


def read_tensors(path: Path, about: About, raw: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors, which must be those that were written, and finite."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise InputError(f"{path}: not a model of a fedproc run: {error}") from error
    if about.checksum is not None and about.checksum != checksum(tensors, raw):
        raise InputError(f"{path}: its checksum is wrong: it was changed or damaged; {AGAIN}")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{path}: {name} is not finite")
    return tensors
