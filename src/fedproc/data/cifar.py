"""CIFAR-10 and CIFAR-100 from the official binary or python layout, extracted or as the .tar.gz.

An archive is read member by member into memory; nothing is unpacked to disk. Every file is checked against the
published SHA-1.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedproc.data import cifar_python
from fedproc.data.download import Download, fetch
from fedproc.data.images import Images, Split
from fedproc.errors import InputError

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Part:
    """One .bin file: its records and the SHA-1 of its published bytes (None: not checked)."""

    name: str
    records: int
    sha1: str | None


@dataclass(frozen=True)
class Cifar:
    """One of the two data sets: label bytes per record (the last one counts), files, names, archive."""

    name: str
    folder: str
    label_bytes: int
    classes: int
    train: tuple[Part, ...]
    test: tuple[Part, ...]
    names_file: str
    download: Download
    python_folder: str
    python_labels: tuple[str, ...]
    python_meta: tuple[str, str]
    python_archive: str

    def read(self, data_dir: Path | None) -> Images:
        """From `data_dir` if given (never downloading), else from the user's cache, downloaded if needed."""
        if data_dir is None:
            read_file, where = self._archive(fetch(self.download))
        else:
            read_file, where = self._find(data_dir)
        train = [self._part(part, read_file, where) for part in self.train]
        test = [self._part(part, read_file, where) for part in self.test]
        return Images(self.name, _join(train), _join(test), self._names(read_file))

    def _find(self, data_dir: Path) -> tuple[Reader, str]:
        if not data_dir.is_dir():
            if data_dir.is_file():
                return self._archive(data_dir)
            raise InputError(f"--data-dir {data_dir}: no such folder")
        for folder in (data_dir / self.folder, data_dir):
            if (folder / self.test[0].name).is_file():
                return _from_folder(folder)
        pickled = self.test[0].name.removesuffix(".bin")
        for folder in (data_dir / self.python_folder, data_dir):
            if (folder / pickled).is_file():
                return self._python(*_from_folder(folder))
        for archive in (data_dir / self.download.name, data_dir / self.python_archive):
            if archive.is_file():
                return self._archive(archive)
        raise InputError(
            f"--data-dir {data_dir}: expected {self.folder}/{self.test[0].name} or {self.download.name} in it "
            f"for {self.name}, or the python version's {self.python_folder}/{pickled} or {self.python_archive}"
        )

    def _archive(self, path: Path) -> tuple[Reader, str]:
        """An archive of either version, of which only the files that belong to it are read."""
        binary = [part.name for part in (*self.train, *self.test)]
        if "python" not in path.name:
            return _from_archive(path, self.folder, {*binary, self.names_file})
        names = {name.removesuffix(".bin") for name in binary} | {self.python_meta[0]}
        return self._python(*_from_archive(path, self.python_folder, names))

    def _python(self, read_pickle: Reader, where: str) -> tuple[Reader, str]:
        """The python version read as if it were the binary one."""

        def read_file(name: str) -> bytes | None:
            meta, key = self.python_meta
            if name == self.names_file:
                content = read_pickle(meta)
                return None if content is None else cifar_python.names(content, f"{where}/{meta}", key)
            content = read_pickle(name.removesuffix(".bin"))
            path = f"{where}/{name.removesuffix('.bin')}"
            return None if content is None else cifar_python.binary(content, path, self.python_labels)

        return read_file, where

    def _part(self, part: Part, read_file: Reader, where: str) -> Split:
        path = f"{where}/{part.name}"
        content = read_file(part.name)
        if content is None:
            raise InputError(f"{path}: missing; {self.name} is made of {len(self.train) + len(self.test)} files")
        size = part.records * (self.label_bytes + PIXELS)
        if len(content) != size:
            state = "truncated" if len(content) < size else "too long"
            raise InputError(f"{path}: {state}: has {len(content):,} bytes, expected {size:,}")
        records = np.frombuffer(content, np.uint8).reshape(part.records, -1)
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        wrong = np.flatnonzero(labels >= self.classes)
        if len(wrong):
            raise InputError(
                f"{path}: record {wrong[0]} has label {labels[wrong[0]]}, expected 0 to {self.classes - 1}"
            )
        if part.sha1 is not None and (got := hashlib.sha1(content).hexdigest()) != part.sha1:
            raise InputError(f"{path}: wrong checksum: SHA-1 is {got}, published is {part.sha1}; get the file again")
        return Split(records[:, self.label_bytes :].reshape(-1, 3, 32, 32), labels)

    def _names(self, read_file: Reader) -> tuple[str, ...]:
        """The names file of the archive, or plain numbers where there are only the .bin files."""
        content = read_file(self.names_file)
        names = content.decode("utf-8", "replace").split() if content else []
        if len(names) == self.classes:
            return tuple(names)
        return CIFAR10_NAMES if self.classes == 10 else tuple(str(k) for k in range(self.classes))


Reader = Callable[[str], bytes | None]


def _from_folder(folder: Path) -> tuple[Reader, str]:
    def read_file(name: str) -> bytes | None:
        try:
            return (folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"{folder / name}: cannot be read: {error.strerror}") from error

    return read_file, str(folder)


def _from_archive(archive: Path, folder: str, wanted: set[str]) -> tuple[Reader, str]:
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                inner, _, name = member.name.removeprefix("./").rpartition("/")
                ours = member.isfile() and inner in (folder, "") and name in wanted
                stream = tar.extractfile(member) if ours else None
                if stream is not None and member.size <= 256 << 20:
                    contents[name] = stream.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise InputError(f"{archive}: not a whole .tar.gz archive: {error}; get the file again") from error
    return contents.get, str(archive)


def _join(splits: list[Split]) -> Split:
    return Split(np.concatenate([s.images for s in splits]), np.concatenate([s.labels for s in splits]))


CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR10 = Cifar(
    name="cifar10",
    folder="cifar-10-batches-bin",
    label_bytes=1,
    classes=10,
    train=(
        Part("data_batch_1.bin", 10_000, "aadd24acce27caa71bf4b10992e9e7b2d74c2540"),
        Part("data_batch_2.bin", 10_000, "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795"),
        Part("data_batch_3.bin", 10_000, "1dd00a74ab1d17a6e7d73e185b69dbf31242f295"),
        Part("data_batch_4.bin", 10_000, "aab85764eb3584312d3c7f65fd2fd016e36a258e"),
        Part("data_batch_5.bin", 10_000, "26e2849e66a845b7f1e4614ae70f4889ae604628"),
    ),
    test=(Part("test_batch.bin", 10_000, "67eb016db431130d61cd03c7ad570b013799c88c"),),
    names_file="batches.meta.txt",
    download=Download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    python_folder="cifar-10-batches-py",
    python_labels=("labels",),
    python_meta=("batches.meta", "label_names"),
    python_archive="cifar-10-python.tar.gz",
)

CIFAR100 = Cifar(
    name="cifar100",
    folder="cifar-100-binary",
    label_bytes=2,
    classes=100,
    train=(Part("train.bin", 50_000, "e207cd2e05b73b1393c74c7f5e7bea451d63e08e"),),
    test=(Part("test.bin", 10_000, "8fb6623e830365ff53cf14adec797474f5478006"),),
    names_file="fine_label_names.txt",
    download=Download("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    python_folder="cifar-100-python",
    python_labels=("coarse_labels", "fine_labels"),
    python_meta=("meta", "fine_label_names"),
    python_archive="cifar-100-python.tar.gz",
)
