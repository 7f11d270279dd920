"""`fashion-mini`: 10,000 + 2,000 images of Fashion-MNIST that are part of the package.

Fashion-MNIST is (c) 2017 Zalando SE, MIT licence (fashion_mini/LICENSE); scripts/make_fashion_mini.py made the sheets.
"""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np
from PIL import Image

from fedproc.data.idx import FASHION_NAMES
from fedproc.data.images import Images, Split

SIDE = 28


def read() -> Images:
    return Images("fashion-mini", _sheet("train.png"), _sheet("test.png"), FASHION_NAMES)


def _sheet(name: str) -> Split:
    """A sheet of 28x28 tiles in rows, the classes in order, equally many of each."""
    content = files("fedproc.data").joinpath("fashion_mini", name).read_bytes()
    pixels = np.asarray(Image.open(io.BytesIO(content)), dtype=np.uint8)
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    tiles = pixels.reshape(rows, SIDE, columns, SIDE).transpose(0, 2, 1, 3).reshape(-1, 1, SIDE, SIDE)
    labels = np.repeat(np.arange(len(FASHION_NAMES)), len(tiles) // len(FASHION_NAMES))
    return Split(np.ascontiguousarray(tiles), labels)
