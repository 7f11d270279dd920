"""A person's own images: `train/<class>/*` and `test/<class>/*`, or `<class>/*` with a stratified split."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedproc import streams
from fedproc.data.images import Bytes, Images, Labels, Split
from fedproc.errors import InputError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
GREY = ("1", "L", "LA")
USUAL_SIDE = 32
LARGEST_OWN_SIDE = 64

Listing = dict[str, list[Path]]
A = TypeVar("A")
R = TypeVar("R")


def read(folder: Path, image_size: int | None, test_fraction: float, data_seed: int) -> Images:
    """Images of any size and common format, cropped to a centred square and scaled to `image_size`.

    Without a size, images that are all one small square keep it. Grey stays grey if all are.
    """
    if not folder.is_dir():
        raise InputError(f"--data {folder}: no such folder, nor a data set of that name")
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        train, test = _classes(folder / "train"), _classes(folder / "test")
        names = sorted(train)
        strange = sorted(set(test) - set(train))
        if strange:
            raise InputError(f"{folder / 'test' / strange[0]}: a class that {folder / 'train'} does not have")
    else:
        train = _classes(folder)
        names = sorted(train)
        train, test = _split(train, names, test_fraction, data_seed)
    paths = [path for listing in (train, test) for name in names for path in listing.get(name, [])]
    shapes = _concurrently(_look, paths)
    channels = 1 if all(mode in GREY for _, mode in shapes) else 3
    side = image_size or _own_side([size for size, _ in shapes])
    parts = [_load(listing, names, side, channels) for listing in (train, test)]
    return Images(str(folder), parts[0], parts[1], tuple(names))


def _classes(folder: Path) -> Listing:
    listing: Listing = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            files = sorted(p for p in entry.rglob("*") if p.suffix.lower() in EXTENSIONS and p.is_file())
            listing[entry.name] = [p for p in files if not p.name.startswith(".")]
    if not listing:
        raise InputError(f"{folder}: not an image folder: expected one sub-folder a class with images in it")
    for name, files in listing.items():
        if not files:
            raise InputError(
                f"{folder / name}: an empty class: no image ({', '.join(EXTENSIONS)}) in it; "
                "add images or remove the folder"
            )
    return listing


def _split(listing: Listing, names: Sequence[str], fraction: float, seed: int) -> tuple[Listing, Listing]:
    train: Listing = {}
    test: Listing = {}
    for place, name in enumerate(names):
        files = listing[name]
        if len(files) < 2:
            raise InputError(f"{files[0].parent}: one image only; a split into train and test needs two a class")
        count = min(max(1, round(fraction * len(files))), len(files) - 1)
        drawn = streams.order(streams.key(seed, streams.Purpose.TEST_SPLIT, place), len(files)).tolist()
        test[name] = [files[i] for i in sorted(drawn[:count])]
        train[name] = [files[i] for i in sorted(drawn[count:])]
    return train, test


def _own_side(sizes: Sequence[tuple[int, int]]) -> int:
    first = sizes[0]
    own = first[0] == first[1] <= LARGEST_OWN_SIDE and all(size == first for size in sizes)
    return first[0] if own else USUAL_SIDE


def _look(path: Path) -> tuple[tuple[int, int], str]:
    with _open(path) as image:
        return image.size, image.mode


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError) as error:
        raise InputError(f"{path}: not a readable image: {_reason(error)}") from error


def decode(path: Path, side: int, channels: int) -> Bytes:
    """One image as (channels, side, side)."""
    try:
        with _open(path) as image:
            upright = ImageOps.exif_transpose(image)
            coloured = upright.convert("L" if channels == 1 else "RGB")
            fitted = ImageOps.fit(coloured, (side, side), Image.Resampling.BILINEAR)
            pixels = np.asarray(fitted, dtype=np.uint8)
    except InputError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable image: {_reason(error)}") from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _reason(error: Exception) -> str:
    return "its format is not known" if isinstance(error, UnidentifiedImageError) else str(error)


def _load(listing: Listing, names: Sequence[str], side: int, channels: int) -> Split:
    paths = [path for name in names for path in listing.get(name, [])]
    labels: Labels = np.repeat(np.arange(len(names)), [len(listing.get(name, [])) for name in names])
    images = np.empty((len(paths), channels, side, side), np.uint8)

    def fill(place: int) -> None:
        images[place] = decode(paths[place], side, channels)

    _concurrently(fill, range(len(paths)))
    return Split(images, labels)


def _concurrently(work: Callable[[A], R], items: Iterable[A]) -> list[R]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))
