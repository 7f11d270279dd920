"""CIFAR's python layout: the same images as the binary one, and nothing but arrays out of a pickle."""

from __future__ import annotations

import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cifar import small, write

from fedproc import InputError
from fedproc.data.cifar import CIFAR10, CIFAR100, Cifar


def batch(cifar: Cifar, records: np.ndarray) -> dict[bytes, Any]:
    labels = {key.encode(): records[:, i].tolist() for i, key in enumerate(cifar.python_labels)}
    return {
        b"batch_label": b"a batch",
        **labels,
        b"data": records[:, cifar.label_bytes :].copy(),
        b"filenames": [b"x.png"],
    }


def pickled(cifar: Cifar, folder: Path, written: dict[str, np.ndarray]) -> Path:
    target = folder / cifar.python_folder
    target.mkdir()
    for name, records in written.items():
        (target / name.removesuffix(".bin")).write_bytes(pickle.dumps(batch(cifar, records), protocol=2))
    meta, key = cifar.python_meta
    names = [f"name{k}".encode() for k in range(cifar.classes)]
    (target / meta).write_bytes(pickle.dumps({key.encode(): names}, protocol=2))
    return target


@pytest.mark.parametrize("official", [CIFAR10, CIFAR100], ids=lambda c: c.name)
def test_it_is_the_binary_version(official: Cifar, tmp_path: Path) -> None:
    cifar = small(official)
    written = write(cifar, tmp_path / "binary")
    expected = cifar.read(tmp_path / "binary")
    folder = pickled(cifar, tmp_path, written)
    found = cifar.read(tmp_path)
    assert (found.train.images == expected.train.images).all() and (found.test.labels == expected.test.labels).all()
    assert found.class_names[1] == "name1"
    archive = tmp_path / "packed" / cifar.python_archive
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, cifar.python_folder)
    assert cifar.read(archive.parent).fingerprint == cifar.read(archive).fingerprint == found.fingerprint


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("evil", "asks for posix.system, which a file of images does not need"),
        ("cut", "not a readable CIFAR pickle"),
        ("text", "not a readable CIFAR pickle"),
        ("list", "not a readable CIFAR pickle"),
        ("no data", "has no data"),
        ("floats", "data is not an array of bytes"),
        ("fewer labels", "labels is not a list of 20 labels"),
        ("no label", "holds something that is no label"),
        ("label 10", "record 3 has label 10, expected 0 to 9"),
        ("short", "truncated"),
        ("checksum", "wrong checksum"),
    ],
)
def test_damage_is_named_by_path(damage: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cifar = small(CIFAR10)
    written = write(cifar, tmp_path / "binary")
    path = pickled(cifar, tmp_path, written) / "data_batch_3"
    good = batch(cifar, written["data_batch_3.bin"])
    if damage == "evil":
        path.write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:200])
    elif damage == "text":
        path.write_text("hello")
    elif damage == "checksum":
        cifar = replace(cifar, train=tuple(replace(p, sha1="00" * 20) if "3" in p.name else p for p in cifar.train))
    else:
        changes: dict[str, Any] = {
            "list": [1, 2],
            "no data": {k: v for k, v in good.items() if k != b"data"},
            "floats": {**good, b"data": good[b"data"].astype(np.float32)},
            "fewer labels": {**good, b"labels": good[b"labels"][:-1]},
            "no label": {**good, b"labels": [*good[b"labels"][:-1], "seven"]},
            "label 10": {**good, b"labels": [*good[b"labels"][:3], 10, *good[b"labels"][4:]]},
            "short": {**good, b"labels": good[b"labels"][:10], b"data": good[b"data"][:10]},
        }
        path.write_bytes(pickle.dumps(changes[damage], protocol=2))
    with pytest.raises(InputError) as caught:
        cifar.read(tmp_path)
    assert words in str(caught.value) and "data_batch_3" in str(caught.value)
    assert not (tmp_path / "evil").exists()


@pytest.mark.slow
def test_real_bytes_in_the_python_layout_pass_the_published_checksums(real_data: Path, tmp_path: Path) -> None:
    for cifar in (CIFAR10, CIFAR100):
        written = {}
        for part in (*cifar.train, *cifar.test):
            content = (real_data / cifar.folder / part.name).read_bytes()
            written[part.name] = np.frombuffer(content, np.uint8).reshape(part.records, -1)
        pickled(cifar, tmp_path, written)
        found, expected = cifar.read(tmp_path), cifar.read(real_data)
        assert (found.train.images == expected.train.images).all() and (found.test.labels == expected.test.labels).all()
