"""MNIST and Fashion-MNIST: four idx files, gzipped or not."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from fedproc.data.download import Download, fetch
from fedproc.data.images import Bytes, Images, Split
from fedproc.errors import InputError

MOST_BYTES = 1 << 31
PARTS = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class Idx:
    """A data set of 28x28 grey images in ten classes, and where its four files are published (name: MD5)."""

    name: str
    class_names: tuple[str, ...]
    place: str
    files: dict[str, str]

    def read(self, data_dir: Path | None) -> Images:
        """From `data_dir` if given (never downloading), else from the user's cache, downloaded if needed."""
        splits = {part: self._split(prefix, data_dir) for part, prefix in PARTS.items()}
        return Images(self.name, splits["train"], splits["test"], self.class_names)

    def _split(self, prefix: str, data_dir: Path | None) -> Split:
        image_path = self._path(f"{prefix}-images-idx3-ubyte", data_dir)
        label_path = self._path(f"{prefix}-labels-idx1-ubyte", data_dir)
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1).astype(np.int64)
        if len(images) != len(labels):
            raise InputError(f"{label_path}: {len(labels)} labels for the {len(images)} images of {image_path}")
        wrong = np.flatnonzero(labels >= len(self.class_names))
        if len(wrong):
            last = len(self.class_names) - 1
            raise InputError(f"{label_path}: record {wrong[0]} has label {labels[wrong[0]]}, expected 0 to {last}")
        return Split(np.array(images[:, None]), labels)

    def _path(self, stem: str, data_dir: Path | None) -> Path:
        if data_dir is None:
            return fetch(Download(f"{self.place}{stem}.gz", self.files[f"{stem}.gz"], folder=self.name))
        if not data_dir.is_dir():
            raise InputError(f"--data-dir {data_dir}: no such folder")
        for path in (
            data_dir / stem,
            data_dir / f"{stem}.gz",
            data_dir / "raw" / stem,
            data_dir / "raw" / f"{stem}.gz",
        ):
            if path.is_file():
                return path
        raise InputError(f"--data-dir {data_dir}: expected {stem} or {stem}.gz in it for {self.name}, found neither")


def read_idx(path: Path, dimensions: int) -> Bytes:
    """The bytes of an idx file of unsigned bytes with so many dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic, sizes = file.read(4), file.read(4 * dimensions)
            if len(magic) == 4 and magic != bytes([0, 0, 8, dimensions]):
                raise InputError(
                    f"{path}: not an idx file of bytes in {dimensions} dimensions: begins with {magic.hex()}, "
                    f"expected {bytes([0, 0, 8, dimensions]).hex()}"
                )
            if len(sizes) < 4 * dimensions:
                raise InputError(f"{path}: truncated: no whole header")
            shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
            if prod(shape) > MOST_BYTES:
                raise InputError(f"{path}: its header asks for {prod(shape):,} bytes, expected at most {MOST_BYTES:,}")
            content = file.read(prod(shape) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if len(content) != prod(shape):
        state = "truncated" if len(content) < prod(shape) else "too long"
        raise InputError(f"{path}: {state}: expected {prod(shape):,} bytes after the header")
    if dimensions == 3 and shape[1] != shape[2]:
        raise InputError(f"{path}: images of {shape[1]} x {shape[2]}, expected squares")
    return np.frombuffer(content, np.uint8).reshape(shape)


FASHION_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

FASHION_MNIST = Idx(
    name="fashion-mnist",
    class_names=FASHION_NAMES,
    place="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    files={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)

MNIST = Idx(
    name="mnist",
    class_names=tuple(str(digit) for digit in range(10)),
    place="https://ossci-datasets.s3.amazonaws.com/mnist/",
    files={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)
