from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from fedproc import InputError
from fedproc.data.idx import FASHION_MNIST, MNIST

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
RNG = np.random.default_rng(0)


def content(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()


def write(folder: Path, zipped: bool, counts: tuple[int, int] = (30, 10)) -> dict[str, np.ndarray]:
    written = {}
    for prefix, count in zip(("train", "t10k"), counts, strict=True):
        for stem, values in (
            (f"{prefix}-images-idx3-ubyte", RNG.integers(0, 256, (count, 28, 28))),
            (f"{prefix}-labels-idx1-ubyte", np.arange(count) % 10),
        ):
            written[stem] = values
            path = folder / (f"{stem}.gz" if zipped else stem)
            path.write_bytes(gzip.compress(content(values)) if zipped else content(values))
    return written


@pytest.mark.parametrize("zipped", [False, True])
def test_gzipped_or_not(zipped: bool, tmp_path: Path) -> None:
    written = write(tmp_path, zipped)
    images = MNIST.read(tmp_path)
    assert images.train.images.shape == (30, 1, 28, 28) and images.class_names[7] == "7"
    assert (images.train.images[:, 0] == written["train-images-idx3-ubyte"]).all()
    assert images.test.labels.tolist() == written["t10k-labels-idx1-ubyte"].tolist()


@pytest.mark.parametrize(
    ("stem", "damaged", "words"),
    [
        ("train-images-idx3-ubyte", b"\0\0\x08", "truncated: no whole header"),
        ("train-images-idx3-ubyte", content(np.zeros(5)), "not an idx file of bytes in 3 dimensions"),
        ("train-images-idx3-ubyte", content(np.zeros((30, 28, 28)))[:-1], "truncated"),
        ("train-images-idx3-ubyte", content(np.zeros((30, 28, 28))) + b"x", "too long"),
        ("train-images-idx3-ubyte", content(np.zeros((30, 28, 20))), "expected squares"),
        ("train-images-idx3-ubyte", bytes([0, 0, 8, 3]) + b"\xff" * 12, "its header asks for"),
        ("train-labels-idx1-ubyte", content(np.full(30, 10)), "record 0 has label 10, expected 0 to 9"),
        ("train-labels-idx1-ubyte", content(np.zeros(29)), "29 labels for the 30 images"),
        ("t10k-labels-idx1-ubyte", None, "expected t10k-labels-idx1-ubyte or"),
    ],
)
def test_damage_is_named_by_path(stem: str, damaged: bytes | None, words: str, tmp_path: Path) -> None:
    write(tmp_path, zipped=False)
    (tmp_path / stem).unlink()
    if damaged is not None:
        (tmp_path / stem).write_bytes(damaged)
    with pytest.raises(InputError) as caught:
        MNIST.read(tmp_path)
    assert words in str(caught.value) and stem in str(caught.value)


@pytest.mark.parametrize("kind", ["cut", "flipped", "not gzip"])
def test_damaged_gzip_is_named_by_path(kind: str, tmp_path: Path) -> None:
    write(tmp_path, zipped=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    whole = bytearray(path.read_bytes())
    if kind == "flipped":
        whole[len(whole) // 2] ^= 0xFF
    path.write_bytes({"cut": bytes(whole[:-100]), "flipped": bytes(whole), "not gzip": b"hello"}[kind])
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz"):
        MNIST.read(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist() -> None:
    images = FASHION_MNIST.read(DEBIAN)
    assert images.train.images.shape == (60_000, 1, 28, 28) and len(images.test) == 10_000
    assert np.bincount(images.train.labels).tolist() == [6000] * 10
    assert images.train.images.mean() / 255 == pytest.approx(0.2860, abs=1e-4)
