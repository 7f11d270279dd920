"""Tiny-ImageNet's layout: the official sample where it is, and small trees of the same shape."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedproc import InputError
from fedproc.data import tiny_imagenet
from fedproc.data.tiny_imagenet import ROOT, read

SAMPLE = Path(__file__).resolve().parents[3] / "shared" / "data" / "tiny-imagenet-200-sample.zip"


def jpeg(level: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((64, 64, 3), level, np.uint8)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Three classes with two training images and one val image each."""
    monkeypatch.setattr(tiny_imagenet, "CLASSES", 3)
    ids = ["n003", "n001", "n002"]
    files = {
        "wnids.txt": "\n".join(ids).encode(),
        "words.txt": b"n001\tgoldfish, Carassius\nn002\tdesk\nn999\tother",
        "val/val_annotations.txt": b"".join(f"val_{i}.JPEG\t{k}\t0\t0\t9\t9\n".encode() for i, k in enumerate(ids)),
    }
    for place, k in enumerate(ids):
        files[f"val/images/val_{place}.JPEG"] = jpeg(10 * place)
        for i in range(2):
            files[f"train/{k}/images/{k}_{i}.JPEG"] = jpeg(50 * place + i)
        files[f"train/{k}/{k}_boxes.txt"] = b"not an image"
    return files


def unpack(files: dict[str, bytes], folder: Path) -> Path:
    for name, content in files.items():
        path = folder / ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pack(files: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(f"{ROOT}/{name}", content)
    return path


def test_zip_and_folder_give_the_same(tree: dict[str, bytes], tmp_path: Path) -> None:
    folder = read(unpack(tree, tmp_path / "a"), None)
    assert folder.train.images.shape == (6, 3, 64, 64)
    assert folder.class_names == ("goldfish", "desk", "n003")  # by id; n003 has no word
    assert folder.test.labels.tolist() == [2, 0, 1]
    archive = pack(tree, tmp_path / "tiny-imagenet-200.zip")
    assert read(archive, None).fingerprint == read(tmp_path, None).fingerprint == folder.fingerprint
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "tiny-imagenet-200.zip"]
    assert read(archive, 32).side == 32


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("wnids.txt", None, "wnids.txt"),
        ("wnids.txt", b"n001\nn002\n", "2 classes, expected 3"),
        ("wnids.txt", b"\xff\xfe\xff", "not text"),
        ("val/val_annotations.txt", None, "val/val_annotations.txt: missing"),
        ("val/val_annotations.txt", b"val_0.JPEG n001", "line 1: expected an image and its class id"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn777\n", "line 1: expected an image and its class id"),
        ("val/images/val_1.JPEG", None, "val/images/val_1.JPEG: missing, though"),
        ("train/n002/images/n002_0.JPEG", b"hello", "train/n002/images/n002_0.JPEG: not a readable image"),
        ("train/n002/images/n002_0.JPEG", jpeg(9)[:-300], "train/n002/images/n002_0.JPEG: not a readable image"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_damage_is_named_by_path(
    tree: dict[str, bytes], name: str, content: bytes | None, words: str, zipped: bool, tmp_path: Path
) -> None:
    if content is None:
        del tree[name]
    else:
        tree[name] = content
    where = pack(tree, tmp_path / "t.zip") if zipped else unpack(tree, tmp_path)
    with pytest.raises(InputError) as caught:
        read(where, None)
    assert words in str(caught.value)


def test_an_empty_class(tree: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="train/n001: an empty class"):
        read(unpack({n: c for n, c in tree.items() if "train/n001" not in n}, tmp_path), None)


@pytest.mark.parametrize("kind", ["cut", "not a zip", "flipped", "bomb"])
def test_damaged_archives(kind: str, tree: dict[str, bytes], tmp_path: Path) -> None:
    if kind == "bomb":
        tree["train/n002/images/n002_0.JPEG"] = b"\0" * (9 << 20)
    path = pack(tree, tmp_path / "t.zip")
    whole = bytearray(path.read_bytes())
    if kind == "cut":
        path.write_bytes(bytes(whole[: len(whole) // 2]))
    elif kind == "not a zip":
        path.write_bytes(b"hello" * 100)
    elif kind == "flipped":
        at = whole.index(b"wnids.txt") + 12
        whole[at] ^= 0xFF
        path.write_bytes(bytes(whole))
    with pytest.raises(InputError, match=r"t\.zip"):
        read(path, None)


def test_a_zip_that_points_outside_writes_nothing(tree: dict[str, bytes], tmp_path: Path) -> None:
    tree["../../evil.txt"] = b"evil"
    read(pack(tree, tmp_path / "deep.zip"), None)
    assert not list(tmp_path.parent.glob("evil*"))


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the official sample is not here")
def test_the_official_sample() -> None:
    images = read(SAMPLE, None)
    assert images.train.images.shape == (1600, 3, 64, 64) and len(images.test) == 400
    assert np.bincount(images.train.labels).tolist() == [8] * 200
    assert np.bincount(images.test.labels).tolist() == [2] * 200
    assert "goldfish" in images.class_names
