"""One image file to bytes of one shape: any common format, 8 or 16 bits, grey or colour."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from fedproc.data.images import Bytes
from fedproc.errors import InputError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
DICOM = (".dcm", ".dicom")
SIXTEEN = ("I;16", "I;16B", "I;16L")
GREY = ("1", "L", "LA", "I", *SIXTEEN)
MOST_PIXELS = 64_000_000
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # others may call programs, as EPS does

Fit = Literal["stretch", "pad", "crop"]
RESAMPLING = Image.Resampling.BILINEAR
PAD_LEVEL = 0  # black, in every channel

A = TypeVar("A")
R = TypeVar("R")


@dataclass(frozen=True)
class Picture:
    """Where an image is: a file, or bytes out of an archive under a name."""

    name: str
    content: Callable[[], bytes] | None = None

    @classmethod
    def at(cls, path: Path) -> Picture:
        return cls(str(path))

    def look(self) -> tuple[tuple[int, int], bool]:
        """Width and height, and whether it is grey, without decoding it."""
        with self._open() as image:
            return image.size, image.mode in GREY

    def decode(self, side: int, channels: int, fit: Fit) -> Bytes:
        """(channels, side, side): upright, 8 bits, made square and scaled."""
        upright = self.upright()
        try:
            if upright.mode in SIXTEEN:
                upright = _eight_bits(upright)
            coloured = upright.convert("L" if channels == 1 else "RGB")
            pixels = np.asarray(_fitted(coloured, side, fit), dtype=np.uint8)
        except Exception as error:
            raise InputError(f"{self.name}: not a readable image: {_reason(error)}") from error
        return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)

    def upright(self) -> Image.Image:
        """The whole image, turned as its EXIF orientation says."""
        try:
            with self._open() as image:
                upright = ImageOps.exif_transpose(image)
                upright.load()
        except InputError:
            raise
        except Exception as error:  # damaged files fail in many ways
            raise InputError(f"{self.name}: not a readable image: {_reason(error)}") from error
        if upright.mode in ("F", "I"):
            kind = "floating-point" if upright.mode == "F" else "32-bit"
            raise InputError(f"{self.name}: {kind} pixels; expected 8 or 16 bits, save it as such")
        return upright

    def raw(self) -> bytes:
        """The file as it is."""
        try:
            return Path(self.name).read_bytes() if self.content is None else self.content()
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read: {error.strerror}") from error

    def _open(self) -> Image.Image:
        try:
            image = Image.open(self.name if self.content is None else io.BytesIO(self.content()), formats=FORMATS)
        except InputError:
            raise
        except Exception as error:
            if self._is_dicom():
                raise InputError(
                    f"{self.name}: DICOM is not read, since its pixels need a window and its header names a patient; "
                    "`fedproc data convert DIR --to png --out NEW` makes PNG files and a CSV file of a folder of them"
                ) from error
            raise InputError(f"{self.name}: not a readable image: {_reason(error)}") from error
        width, height = image.size
        if width * height > MOST_PIXELS:
            image.close()
            raise InputError(f"{self.name}: {width:,} x {height:,} pixels; expected at most {MOST_PIXELS:,} in all")
        return image

    def _is_dicom(self) -> bool:
        if self.name.lower().endswith(DICOM):
            return True
        try:
            if self.content is not None:
                start = self.content()[:132]
            else:
                with open(self.name, "rb") as file:
                    start = file.read(132)
        except (OSError, InputError):
            return False
        return start[128:] == b"DICM"


def _eight_bits(image: Image.Image) -> Image.Image:
    """The upper byte of 16 bits: the whole range, nothing is clipped."""
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _fitted(image: Image.Image, side: int, fit: Fit) -> Image.Image:
    """A square of that side: out of proportion, whole with black beside it, or its middle."""
    if fit == "stretch":
        return image.resize((side, side), RESAMPLING)
    if fit == "crop":
        return ImageOps.fit(image, (side, side), RESAMPLING)
    scale = side / max(image.size)
    width, height = (max(1, round(scale * length)) for length in image.size)
    square = Image.new(image.mode, (side, side), PAD_LEVEL if image.mode == "L" else (PAD_LEVEL,) * 3)
    square.paste(image.resize((width, height), RESAMPLING), ((side - width) // 2, (side - height) // 2))
    return square


def _reason(error: BaseException) -> str:
    return "its format is not known" if isinstance(error, UnidentifiedImageError) else str(error)


def tried(work: Callable[[], R]) -> R | InputError:
    """What came of it, or what was wrong with the file."""
    try:
        return work()
    except InputError as error:
        return error


def concurrently(
    work: Callable[[A], R], items: Iterable[A], progress: Callable[[int], None] = lambda count: None
) -> list[R]:
    """`work` on all items, in order; decoding releases the interpreter's lock."""
    found = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(work, items):
            found.append(result)
            progress(1)
    return found
