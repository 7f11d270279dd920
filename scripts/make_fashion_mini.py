#!/usr/bin/env python3
"""Make the embedded `fashion-mini`: the first images of each class of Fashion-MNIST, as two PNG sheets.

    apt-get install dataset-fashion-mnist
    python scripts/make_fashion_mini.py /usr/share/datasets/fashion-mnist src/fedproc/data/fashion_mini

1,000 training and 200 test images a class, losslessly, in rows of 100 images, the classes in order,
so a row tells the label. Fashion-MNIST is (c) 2017 Zalando SE, MIT licence.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, PER_ROW, CLASSES = 28, 100, 10


def idx(path: Path, header: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def sheet(images: np.ndarray, labels: np.ndarray, per_class: int) -> Image.Image:
    chosen = np.concatenate([np.flatnonzero(labels == k)[:per_class] for k in range(CLASSES)])
    grid = images[chosen].reshape(-1, PER_ROW, SIDE, SIDE).transpose(0, 2, 1, 3)
    return Image.fromarray(grid.reshape(-1, PER_ROW * SIDE))


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name, prefix, per_class in (("train", "train", 1000), ("test", "t10k", 200)):
        images = idx(source / f"{prefix}-images-idx3-ubyte.gz", 16).reshape(-1, SIDE, SIDE)
        labels = idx(source / f"{prefix}-labels-idx1-ubyte.gz", 8)
        path = target / f"{name}.png"
        sheet(images, labels, per_class).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
