"""Lists of labelled image files to a data set: the last step of reading folders and manifests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fedproc.data.images import Images, Labels, Skipped, Split, label_numbers
from fedproc.data.memory import room
from fedproc.data.names import alike, readable
from fedproc.data.pictures import Fit, Picture, concurrently, tried
from fedproc.data.problems import Complain, Problem
from fedproc.errors import InputError, with_flags

USUAL_SIDE = 32
LARGEST_OWN_SIDE = 64


@dataclass(frozen=True)
class Item:
    """One image, its class, and where they are known the site it comes from, the group it must stay with and the name
    that the data have for it: a path below their folder.
    """

    picture: Picture
    label: str
    site: str | None = None
    group: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Files:
    """Labelled image files in two parts, not read yet. `drawn`: which are test images was drawn for some of them."""

    name: str
    train: Sequence[Item]
    test: Sequence[Item]
    drawn: bool = True

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        return tuple(sorted({item.label for item in self.train}))

    @cached_property
    def _looks(self) -> list[tuple[tuple[int, int], bool]]:
        """Of those that can be opened; the others are counted when all are read."""
        seen = concurrently(lambda item: tried(item.picture.look), [*self.train, *self.test])
        found = [each for each in seen if not isinstance(each, InputError)]
        if not found:
            raise next(each for each in seen if isinstance(each, InputError))
        return found

    @property
    def channels(self) -> int:
        """Grey stays grey if all are."""
        return 1 if all(grey for _, grey in self._looks) else 3

    @property
    def side(self) -> int:
        """Images that are all squares of one small size keep it."""
        return _own_side([size for size, _ in self._looks])

    def judge(self, complain: Complain) -> Files:
        """Complain about what classes are called, and where they are."""
        held, tested = ({item.label for item in part} for part in (self.train, self.test))
        for one, other in alike(held | tested):
            complain(
                Problem(
                    "class names alike",
                    f"{self.name}: classes {one!r} and {other!r} differ in case or spaces alone; give both the same "
                    "name if they are one class, or names that differ more",
                )
            )
        for label in sorted(tested - held):
            where = [item.picture.name for item in self.test if item.label == label]
            complain(
                Problem(
                    "class only in test",
                    f"{self.name}: the test images have a class {label} that the training images do not have "
                    f"({where[0]}); add training images of it (a split that keeps groups together needs two groups "
                    "of a class), or leave its test images out",
                    where,
                )
            )
        return self

    def read(
        self, class_names: Sequence[str], side: int, channels: int, fit: Fit, skip_unreadable: bool = False
    ) -> Images:
        """Decode all of them."""
        parts = [_decoded(items, class_names, side, channels, fit) for items in (self.train, self.test)]
        failed = [failure for part in parts for failure in part.failed]
        if failed and not skip_unreadable:
            raise self._unreadable(failed)
        site_names = _names([[item.site for item in part.items] for part in parts])
        group_names = _names([[item.group for item in part.items] for part in parts])
        splits = [
            Split(
                part.images.images,
                part.images.labels,
                _numbers([item.site for item in part.items], site_names),
                _numbers([item.group for item in part.items], group_names),
                _paths(part.items),
            )
            for part in parts
        ]
        skipped = tuple(
            Skipped(item.name or item.picture.name, item.label, item.site or "", item.group or "") for item, _ in failed
        )
        names = (tuple(class_names), tuple(site_names), tuple(group_names))
        return Images(self.name, splits[0], splits[1], *names, skipped=skipped)

    def _unreadable(self, failed: Sequence[tuple[Item, InputError]]) -> InputError:
        count, first = len(failed), readable(with_flags(failed[0][1]))
        if failed[0][0].name is None:  # a data set that everybody has: there is nothing to go on without
            return failed[0][1]
        many = f"{count} of {len(self.train) + len(self.test)} images cannot be read, the first: {first}"
        return InputError(
            f"{first if count == 1 else many}; `fedproc data check --data {self.name}` finds all that is wrong, "
            f"--skip-unreadable true goes on without {'it' if count == 1 else 'them'}"
        )


@dataclass(frozen=True)
class _Part:
    """The images of one part that could be read, their items, and what went wrong with the others."""

    images: Split
    items: list[Item]
    failed: list[tuple[Item, InputError]]


def gather(files: Files, image_size: int | None, fit: Fit, skip_unreadable: bool = False) -> Images:
    """Decode all, at a size and with the colours that they have themselves where nothing else is said."""
    return files.read(files.class_names, image_size or files.side, files.channels, fit, skip_unreadable)


def _own_side(sizes: Sequence[tuple[int, int]]) -> int:
    first = sizes[0]
    own = first[0] == first[1] <= LARGEST_OWN_SIDE and all(size == first for size in sizes)
    return first[0] if own else USUAL_SIDE


def _names(parts: Sequence[Sequence[str | None]]) -> list[str]:
    """Those of training images first, so that a site or group that is only tested on changes no number."""
    train, test = ({name for name in part if name is not None} for part in parts)
    return [*sorted(train), *sorted(test - train)]


def _numbers(found: Sequence[str | None], known: Sequence[str]) -> Labels | None:
    there = [name for name in found if name is not None]
    return label_numbers(there, known) if there and len(there) == len(found) else None


def _paths(items: Sequence[Item]) -> tuple[str, ...] | None:
    names = tuple(item.name for item in items if item.name is not None)
    return names if len(names) == len(items) else None


def decoded(items: Sequence[Item], class_names: Sequence[str], side: int, channels: int, fit: Fit) -> Split:
    """All of them, in one array; the first that cannot be read is refused."""
    part = _decoded(items, class_names, side, channels, fit)
    if part.failed:
        raise part.failed[0][1]
    return part.images


def _decoded(items: Sequence[Item], class_names: Sequence[str], side: int, channels: int, fit: Fit) -> _Part:
    images = room((len(items), channels, side, side))

    def fill(place: int) -> InputError | None:
        found = tried(lambda: items[place].picture.decode(side, channels, fit))
        if isinstance(found, InputError):
            return found
        images[place] = found
        return None

    errors = concurrently(fill, range(len(items)))
    whole = [place for place, error in enumerate(errors) if error is None]
    for place, source in enumerate(whole):  # in place, since mapped images may not fit into memory twice
        if place != source:
            images[place] = images[source]
    kept = [items[place] for place in whole]
    failed = [(item, error) for item, error in zip(items, errors, strict=True) if error is not None]
    return _Part(Split(images[: len(kept)], label_numbers([item.label for item in kept], class_names)), kept, failed)
