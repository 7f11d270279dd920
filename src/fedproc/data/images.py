"""What every reader returns: bytes, labels and class names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fedproc.data.names import readable
from fedproc.errors import InputError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
CHUNK = 4096
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


@dataclass(frozen=True)
class Split:
    """images (N, C, H, W) uint8, labels (N,), and where known the site (N,) each image comes from, the group (N,), such
    as a patient, that no split may divide, and the path of each image's file below the data's folder.
    """

    images: Bytes
    labels: Labels
    sites: Labels | None = None
    groups: Labels | None = None
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Skipped:
    """A file that could not be read and was left out."""

    name: str
    label: str
    site: str
    group: str


@dataclass(frozen=True)
class Images:
    """A data set: training and test images of the same shape, and what its labels mean. Sites and groups of training
    images have the first numbers; those that follow are only tested on.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    site_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            if len(split) == 0:
                raise InputError(f"{self.name}: no {part} images, expected at least one")
            if split.images.shape[1:] != self.train.images.shape[1:]:
                raise InputError(f"{self.name}: train and test images differ in shape")
        for kind, names in (("class", self.class_names), ("site", self.site_names)):
            for name in (name for name in names if UNPRINTABLE.search(name)):
                raise InputError(
                    f"{self.name}: {kind} {name!r}: control characters or bytes that are not UTF-8; rename it"
                )

    @property
    def channels(self) -> int:
        return int(self.train.images.shape[1])

    @property
    def side(self) -> int:
        return int(self.train.images.shape[2])

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def listing(self) -> list[tuple[str, str, str, str, str]]:
        """(path, class, site, group, train | test | unreadable) of every file, where the images are files by name."""
        rows = []
        for part, split in (("train", self.train), ("test", self.test)):
            for place, name in enumerate(split.names or ()):
                site = "" if split.sites is None else self.site_names[split.sites[place]]
                group = "" if split.groups is None else self.group_names[split.groups[place]]
                rows.append((readable(name), self.class_names[split.labels[place]], site, group, part))
        return [
            *rows,
            *((readable(each.name), each.label, each.site, each.group, "unreadable") for each in self.skipped),
        ]

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that training and testing can see."""
        digest = hashlib.sha256()
        for split in (self.train, self.test):
            digest.update(repr((split.images.shape, split.labels.shape)).encode())
            for start in range(0, len(split), CHUNK):  # mapped images pass through memory chunk by chunk
                digest.update(np.ascontiguousarray(split.images[start : start + CHUNK]).data)
            digest.update(np.ascontiguousarray(split.labels).data)
            for held_by in (split.sites, split.groups):
                if held_by is not None and split is self.train:
                    digest.update(np.ascontiguousarray(held_by).data)
        digest.update("\0".join(self.class_names).encode())
        return digest.hexdigest()


def label_numbers(names: Sequence[str], known: Sequence[str]) -> Labels:
    """The index of each name among the known ones."""
    places = {name: place for place, name in enumerate(known)}
    return np.array([places[name] for name in names], dtype=np.int64)
