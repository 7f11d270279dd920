from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedproc.data import SOURCES, fashion_mini

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def test_stratified_and_small() -> None:
    images = fashion_mini.read()
    assert images.train.images.shape == (10_000, 1, 28, 28) and images.test.images.shape == (2_000, 1, 28, 28)
    assert np.bincount(images.train.labels).tolist() == [1000] * 10
    assert np.bincount(images.test.labels).tolist() == [200] * 10
    assert images.class_names[9] == "Ankle boot"
    folder = Path(fashion_mini.__file__).parent / "fashion_mini"
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 6_000_000
    assert "MIT" in (folder / "LICENSE").read_text()


def test_mean_and_deviation_are_near_those_we_normalise_by() -> None:
    pixels = fashion_mini.read().train.images / 255
    source = SOURCES["fashion-mini"]
    assert pixels.mean() == pytest.approx(source.mean[0], abs=0.005)
    assert pixels.std() == pytest.approx(source.std[0], abs=0.005)


@pytest.mark.slow
@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_every_image_is_one_of_fashion_mnist_with_its_label() -> None:
    images = fashion_mini.read()
    for split, prefix, per_class in ((images.train, "train", 1000), (images.test, "t10k", 200)):
        raw = gzip.decompress((DEBIAN / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        pixels = np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 28, 28)
        labels = np.frombuffer(
            gzip.decompress((DEBIAN / f"{prefix}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
        )
        for k in range(10):
            assert (split.images[split.labels == k, 0] == pixels[labels == k][:per_class]).all()
