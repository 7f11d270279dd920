"""Images that are in memory once for all workers of a machine: files without a name that each of them maps.

The memory is free again when the last process that knows such a file has ended, in whatever way.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from fedproc.data import Images
from fedproc.data.images import Skipped, Split
from fedproc.experiment import Experiment
from fedproc.simulation.preparation import Library
from fedproc.simulation.workers.messages import Message

ALIGNED = 64
PARTS = ("images", "labels", "sites", "groups")
NAMES = ("class_names", "site_names", "group_names")


@dataclass(frozen=True)
class MappedImages:
    """The file of one data set, and what is where in it."""

    handle: int
    index: Message

    def message(self) -> Message:
        return {"handle": self.handle, **self.index}

    def close(self) -> None:
        """Whoever mapped it keeps it."""
        os.close(self.handle)

    def read(self) -> Images:
        """The images, with whatever is written to them private to this process."""
        whole = mmap.mmap(self.handle, int(self.index["bytes"]), access=mmap.ACCESS_COPY)
        splits: dict[str, Split] = {}
        for split in ("train", "test"):
            found: dict[str, Any] = {}
            for name, place in self.index[split].items():
                kind, shape = np.dtype(place["dtype"]), tuple(place["shape"])
                flat = np.frombuffer(whole, kind, int(np.prod(shape)), place["offset"])
                found[name] = flat.reshape(shape)
            splits[split] = Split(**found, names=_tuple(self.index["files"][split]))
        names = {name: tuple(self.index[name]) for name in NAMES}
        skipped = tuple(Skipped(*each) for each in self.index["skipped"])
        images = Images(self.index["name"], splits["train"], splits["test"], **names, skipped=skipped)
        images.__dict__["fingerprint"] = self.index["fingerprint"]  # what the property keeps once it is known
        return images


def shared(library: Library, experiments: Sequence[Experiment]) -> list[MappedImages]:
    """Put the images of these experiments into memory files, and the library's own with them. Where the system has no
    such files, or images are mapped from a disk already, workers read them for themselves.
    """
    made = []
    for key, experiment in {library.key(each): each for each in experiments}.items():
        images = library.images(experiment)
        if hasattr(os, "memfd_create") and not isinstance(images.train.images, np.memmap):
            made.append(_written(key, images))
            library.put(key, made[-1].read())
    return made


def taken(library: Library, messages: Sequence[Message]) -> None:
    """Put the images that a driver shares into a worker's library."""
    for message in messages:
        mapped = MappedImages(int(message["handle"]), message)
        library.put(tuple(message["key"]), mapped.read())


def _written(key: tuple[Any, ...], images: Images) -> MappedImages:
    index: Message = {"key": list(key), "name": images.name, "fingerprint": images.fingerprint}
    index |= {name: list(getattr(images, name)) for name in NAMES}
    index["files"] = {name: getattr(images, name).names for name in ("train", "test")}
    index["skipped"] = [list(astuple(each)) for each in images.skipped]
    handle = os.memfd_create("fedproc-images")
    with os.fdopen(os.dup(handle), "wb") as file:
        for name, split in (("train", images.train), ("test", images.test)):
            places = {}
            for part in PARTS:
                array = getattr(split, part)
                if array is not None:
                    file.seek(-(-file.tell() // ALIGNED) * ALIGNED)
                    places[part] = {"dtype": array.dtype.str, "shape": list(array.shape), "offset": file.tell()}
                    file.write(np.ascontiguousarray(array).data)
            index[name] = places
        index["bytes"] = file.tell()
    return MappedImages(handle, index)


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
