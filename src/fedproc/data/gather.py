"""Lists of labelled image files to a data set: the last step of reading folders and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedproc.data.images import Images, Split, label_numbers
from fedproc.data.memory import room
from fedproc.data.pictures import Picture, concurrently

USUAL_SIDE = 32
LARGEST_OWN_SIDE = 64


@dataclass(frozen=True)
class Item:
    """One image, its class, and where they are known the site it comes from and the group it must stay with."""

    picture: Picture
    label: str
    site: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Files:
    """Labelled image files in two parts, not read yet."""

    name: str
    train: Sequence[Item]
    test: Sequence[Item]

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        return tuple(sorted({item.label for item in self.train}))

    @cached_property
    def _looks(self) -> list[tuple[tuple[int, int], bool]]:
        return concurrently(lambda item: item.picture.look(), [*self.train, *self.test])

    @property
    def channels(self) -> int:
        """Grey stays grey if all are."""
        return 1 if all(grey for _, grey in self._looks) else 3

    @property
    def side(self) -> int:
        """Images that are all squares of one small size keep it."""
        return _own_side([size for size, _ in self._looks])

    def read(self, class_names: Sequence[str], side: int, channels: int) -> Images:
        """Decode all of them."""
        train, test = self.train, self.test
        site_names = sorted({item.site for item in train if item.site is not None})
        splits = [decoded(items, class_names, side, channels) for items in (train, test)]
        sites = label_numbers([item.site or "" for item in train], site_names) if site_names else None
        known = site_names and all(item.site in site_names for item in test)
        tested = label_numbers([item.site or "" for item in test], site_names) if known else None
        group_names = sorted({item.group for item in train if item.group is not None})
        groups = label_numbers([item.group or "" for item in train], group_names) if group_names else None
        training = Split(splits[0].images, splits[0].labels, sites, groups)
        testing = Split(splits[1].images, splits[1].labels, tested)
        return Images(self.name, training, testing, tuple(class_names), tuple(site_names))


def gather(files: Files, image_size: int | None) -> Images:
    """Decode all, at a size and with the colours that they have themselves where nothing else is said."""
    return files.read(files.class_names, image_size or files.side, files.channels)


def _own_side(sizes: Sequence[tuple[int, int]]) -> int:
    first = sizes[0]
    own = first[0] == first[1] <= LARGEST_OWN_SIDE and all(size == first for size in sizes)
    return first[0] if own else USUAL_SIDE


def decoded(items: Sequence[Item], class_names: Sequence[str], side: int, channels: int) -> Split:
    """All of them, in one array."""
    images = room((len(items), channels, side, side))

    def fill(place: int) -> None:
        images[place] = items[place].picture.decode(side, channels)

    concurrently(fill, range(len(items)))
    return Split(images, label_numbers([item.label for item in items], class_names))
