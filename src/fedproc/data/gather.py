"""Lists of labelled image files to a data set: the last step of reading folders and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def gather(name: str, train: Sequence[Item], test: Sequence[Item], image_size: int | None) -> Images:
    """Decode all; without a size, images that are all squares of one small size keep it. Grey stays grey if all are."""
    class_names = sorted({item.label for item in train})
    site_names = sorted({item.site for item in train if item.site is not None})
    looks = concurrently(lambda item: item.picture.look(), [*train, *test])
    channels = 1 if all(grey for _, grey in looks) else 3
    side = image_size or _own_side([size for size, _ in looks])
    splits = [_decoded(items, class_names, side, channels) for items in (train, test)]
    sites = label_numbers([item.site or "" for item in train], site_names) if site_names else None
    group_names = sorted({item.group for item in train if item.group is not None})
    groups = label_numbers([item.group or "" for item in train], group_names) if group_names else None
    training = Split(splits[0].images, splits[0].labels, sites, groups)
    return Images(name, training, splits[1], tuple(class_names), tuple(site_names))


def _own_side(sizes: Sequence[tuple[int, int]]) -> int:
    first = sizes[0]
    own = first[0] == first[1] <= LARGEST_OWN_SIDE and all(size == first for size in sizes)
    return first[0] if own else USUAL_SIDE


def _decoded(items: Sequence[Item], class_names: Sequence[str], side: int, channels: int) -> Split:
    images = room((len(items), channels, side, side))

    def fill(place: int) -> None:
        images[place] = items[place].picture.decode(side, channels)

    concurrently(fill, range(len(items)))
    return Split(images, label_numbers([item.label for item in items], class_names))
