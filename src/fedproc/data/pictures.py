"""One image file to bytes of one shape: any common format, 8 or 16 bits, grey or colour."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

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

    def decode(self, side: int, channels: int) -> Bytes:
        """(channels, side, side): upright, a centred square, scaled."""
        try:
            with self._open() as image:
                upright = ImageOps.exif_transpose(image)
                if upright.mode in SIXTEEN:
                    upright = _eight_bits(upright)
                if upright.mode in ("F", "I"):
                    kind = "floating-point" if upright.mode == "F" else "32-bit"
                    raise InputError(f"{self.name}: {kind} pixels; expected 8 or 16 bits, save it as such")
                coloured = upright.convert("L" if channels == 1 else "RGB")
                fitted = ImageOps.fit(coloured, (side, side), Image.Resampling.BILINEAR)
                pixels = np.asarray(fitted, dtype=np.uint8)
        except InputError:
            raise
        except Exception as error:  # damaged files fail in many ways
            raise InputError(f"{self.name}: not a readable image: {_reason(error)}") from error
        return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)

    def _open(self) -> Image.Image:
        try:
            image = Image.open(self.name if self.content is None else io.BytesIO(self.content()), formats=FORMATS)
        except InputError:
            raise
        except Exception as error:
            if self._is_dicom():
                raise InputError(
                    f"{self.name}: DICOM is not read, since its pixels need a window and its header names a patient; "
                    "convert the series to PNG first (dcm2pnm of DCMTK does) and leave the headers behind"
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


def _reason(error: BaseException) -> str:
    return "its format is not known" if isinstance(error, UnidentifiedImageError) else str(error)


def concurrently(work: Callable[[A], R], items: Iterable[A]) -> list[R]:
    """`work` on all items, in order; decoding releases the interpreter's lock."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, items))
