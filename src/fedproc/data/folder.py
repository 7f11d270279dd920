"""A user's own images, as folders:

train/<class>/*  and  test/<class>/* (or val/)
<class>/*                               with a stratified split
<site>/<class>/*  and  test/<class>/*   for --partition natural; test/<class>/* next to the sites (as
    `fedproc data split` writes it) is the test set, or else a part of theirs
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedproc import streams
from fedproc.data.gather import Files, Item, decoded, gather
from fedproc.data.images import Images, Split
from fedproc.data.pictures import DICOM, EXTENSIONS, Picture
from fedproc.errors import InputError

Listing = dict[str, list[Path]]
TEST_NAMES = ("test", "val")


def read(folder: Path, image_size: int | None, test_fraction: float, data_seed: int) -> Images:
    """Images of any size and common format, cropped to a centred square and scaled to `image_size`."""
    return gather(find(folder, test_fraction, data_seed), image_size)


def find(folder: Path, test_fraction: float, data_seed: int, lonely: bool = False) -> Files:
    """The image files of a folder, in two parts. A class of one image is refused where that must be split, or trained
    on and not tested where `lonely` ones may be: at a site that is one of many.
    """
    if not folder.is_dir():
        raise InputError(f"--data {folder}: no such folder, nor a data set of that name")
    held_out = next((folder / name for name in TEST_NAMES if (folder / name).is_dir()), None)
    if (folder / "train").is_dir():
        train, test = _items(_classes(folder / "train")), None if held_out is None else _items(_classes(held_out))
    elif _sites(folder):
        train = [item for site in _sites(folder) for item in _items(_classes(site), site.name)]
        test = None if held_out is None else _items(_classes(held_out))
    else:
        train, test = _items(_classes(folder)), None
    if test is None:
        train, test = _split(train, test_fraction, data_seed, lonely)
    strange = sorted({item.label for item in test} - {item.label for item in train})
    if strange:
        raise InputError(f"{folder}: the test images have a class {strange[0]} that the training images do not have")
    return Files(str(folder), train, test)


def read_flat(folder: Path, class_names: Sequence[str], side: int, channels: int) -> Split:
    """All images of <class>/*, which must be of these classes."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    items = _items(_classes(folder))
    strange = sorted({item.label for item in items} - set(class_names))
    if strange:
        raise InputError(f"{folder}: images of {strange[0]}, expected {', '.join(class_names)}")
    return decoded(items, class_names, side, channels)


def _folders(folder: Path) -> list[Path]:
    return [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.name.startswith(".")]


def _pictures(folder: Path) -> list[Path]:
    wanted = (*EXTENSIONS, *DICOM)
    return [p for p in sorted(folder.iterdir()) if p.suffix.lower() in wanted and p.is_file() and p.name[0] != "."]


def _anywhere(folder: Path) -> bool:
    return bool(_pictures(folder)) or any(map(_anywhere, _folders(folder)))


def _sites(folder: Path) -> list[Path]:
    """The sub-folders, if they are sites: if they hold classes, and not images."""
    sites = [entry for entry in _folders(folder) if entry.name not in TEST_NAMES]
    return sites if sites and all(_folders(site) and not _pictures(site) for site in sites) else []


def _classes(folder: Path) -> Listing:
    listing = {entry.name: _pictures(entry) for entry in _folders(folder)}
    if not listing:
        raise InputError(f"{folder}: not an image folder: expected one sub-folder per class with images in it")
    for name, files in listing.items():
        inner = _folders(folder / name)
        if files and (deeper := [inside for inside in inner if _anywhere(inside)]):
            raise InputError(
                f"{folder / name}: holds images, and a folder with more ({deeper[0].name}), which would be left out; "
                "move them up, or away"
            )
        if not files:
            if inner:
                raise InputError(f"{folder / name}: holds folders ({inner[0].name}) and no images; expected a class")
            raise InputError(
                f"{folder / name}: an empty class: no image ({', '.join(EXTENSIONS)}) in it; "
                "add images or remove the folder"
            )
    return listing


def _items(listing: Listing, site: str | None = None) -> list[Item]:
    return [Item(Picture.at(path), name, site) for name in sorted(listing) for path in listing[name]]


def _split(items: Sequence[Item], fraction: float, seed: int, lonely: bool) -> tuple[list[Item], list[Item]]:
    train: list[Item] = []
    test: list[Item] = []
    for place, name in enumerate(sorted({item.label for item in items})):
        members = [item for item in items if item.label == name]
        if len(members) < 2 and lonely:
            train += members
            continue
        if len(members) < 2:
            where = Path(members[0].picture.name).parent
            raise InputError(f"{where}: one image only; a split into train and test needs two per class")
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        drawn = streams.order(streams.key(seed, streams.Purpose.TEST_SPLIT, place), len(members)).tolist()
        test += [members[i] for i in sorted(drawn[:count])]
        train += [members[i] for i in sorted(drawn[count:])]
    return train, test
