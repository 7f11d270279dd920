"""Test images of each site, sites that only test, and what classes are called."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedproc import Experiment, InputError
from fedproc.data.images import Images
from fedproc.data.own import read
from fedproc.data.partition import natural
from fedproc.simulation.preparation import Library, prepare, site_names


def picture(path: Path, level: int = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (16, 16), level).save(path)


def classes(folder: Path, count: int = 10, names: tuple[str, ...] = ("a", "b")) -> None:
    for name in names:
        for i in range(count):
            picture(folder / name / f"{i}.png", i)


def held_out(images: Images) -> Counter[tuple[str, str]]:
    """How many test images of each site and class."""
    return Counter((row[2], row[1]) for row in images.listing() if row[4] == "test")


def test_a_share_of_each_site_and_class_is_tested(tmp_path: Path) -> None:
    classes(tmp_path / "north", 10)
    classes(tmp_path / "south", 20)
    classes(tmp_path / "west", 1)
    images = read(tmp_path, None, 0.2, 0)
    shares = {("north", "a"): 2, ("north", "b"): 2, ("south", "a"): 4, ("south", "b"): 4}
    assert held_out(images) == shares  # a single image is trained on
    assert read(tmp_path, None, 0.2, 1).test.names != images.test.names
    assert images.test.names is not None and images.test.names[0].startswith("north/a/")


def test_groups_stay_whole_though_they_are_at_two_sites(tmp_path: Path) -> None:
    rows = ["path,label,group,site"]
    for patient in range(12):
        for i in range(4):
            picture(tmp_path / f"{patient}-{i}.png")
            rows.append(f"{patient}-{i}.png,{'ab'[patient % 2]},p{patient},{'north' if i < 2 else 'south'}")
    (tmp_path / "all.csv").write_text("\n".join(rows), encoding="utf-8")
    images = read(tmp_path / "all.csv", None, 0.3, 0)
    assert images.train.groups is not None and images.test.groups is not None and images.test.sites is not None
    train, test = ({images.group_names[g] for g in split.groups} for split in (images.train, images.test))
    assert test and not train & test and len(images.group_names) == 12
    assert set(images.test.sites) == {0, 1} and len(images.test.groups) == len(images.test)


def hospital(folder: Path) -> None:
    for site in ("north", "south"):
        classes(folder / site / "train", 12)
        classes(folder / site / "test", 3)
    classes(folder / "abroad" / "test", 4)


def test_sites_with_test_folders_and_one_that_only_tests(tmp_path: Path) -> None:
    hospital(tmp_path)
    images = read(tmp_path, None, 0.2, 0)
    assert images.site_names == ("north", "south", "abroad")  # who trains comes first
    assert held_out(images) == {(s, k): n for s, n in (("north", 3), ("south", 3), ("abroad", 4)) for k in "ab"}
    assert [len(share) for share in natural(images.train.sites)] == [24, 24]


def test_who_only_tests_is_no_client(tmp_path: Path) -> None:
    hospital(tmp_path)
    e = Experiment(data=str(tmp_path), partition="natural", method="fedavg", device="cpu")
    images = Library().images(e)
    made = prepare(e, images, Library(), torch.device("cpu"))
    assert site_names(e, images) == ["north", "south"] and made.plan.clients == ["north", "south"]
    assert np.unique(made.held_out.owner.numpy(), return_counts=True)[0].tolist() == [-1, 0, 1]
    assert [(made.held_out.owner == owner).sum() for owner in (-1, 0, 1)] == [8, 6, 6]
    assert made.plan.real_sites


def test_two_test_sets_are_refused(tmp_path: Path) -> None:
    hospital(tmp_path)
    classes(tmp_path / "test", 2)
    with pytest.raises(InputError, match=r"site abroad has test images, and test/ beside the sites has more; keep one"):
        read(tmp_path, None, 0.2, 0)


def test_a_site_without_test_images_gives_a_share_beside_others_that_have_some(tmp_path: Path) -> None:
    hospital(tmp_path)
    classes(tmp_path / "east", 10)
    found = held_out(read(tmp_path, None, 0.2, 0))
    assert found["east", "a"] == 2 and found["north", "a"] == 3


def test_accents_are_one_class_however_they_are_spelt(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "Ödem") for form in ("NFC", "NFD"))
    classes(tmp_path / "north", 4, (composed, "well"))
    classes(tmp_path / "south", 4, (decomposed, "well"))
    assert read(tmp_path, None, 0.2, 0).class_names == ("well", composed)


def test_names_whose_bytes_are_no_text(tmp_path: Path) -> None:
    classes(tmp_path, 4, ("a", os.fsdecode(b"caf\xe9")))
    picture(tmp_path / "a" / os.fsdecode(b"\xff.png"))
    images = read(tmp_path, None, 0.2, 0)
    assert images.class_names == ("a", "caf\ufffd") and len(images.fingerprint) == 64
    assert "a/\ufffd.png" in [row[0] for row in images.listing()]
    (tmp_path / "a" / os.fsdecode(b"\xff.png")).write_text("no image")
    with pytest.raises(InputError) as caught:
        read(tmp_path, None, 0.2, 0)
    assert "\ufffd.png" in str(caught.value) and str(caught.value).encode()


@pytest.mark.parametrize("other", ["normal", "Normal ", "NORMAL"])
def test_names_that_look_alike_are_asked_about(other: str, tmp_path: Path) -> None:
    classes(tmp_path, 4, ("Normal", other, "sick"))
    with pytest.raises(InputError, match=r"differ in case or spaces alone; give both the same name if they are one"):
        read(tmp_path, None, 0.2, 0)


@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
def test_what_separates_fields_is_read_off_the_header(delimiter: str, tmp_path: Path) -> None:
    classes(tmp_path)
    rows = [
        ["path", "label", "group"],
        *([f"{k}/{i}.png", k, f"{k}{i}, with; a | comma"] for k in "ab" for i in range(10)),
    ]
    lines = [delimiter.join(f'"{field}"' if delimiter in field else field for field in row) for row in rows]
    path = tmp_path / ("list.tsv" if delimiter == "\t" else "list.csv")
    path.write_text("﻿" + "\r\n".join(lines), encoding="utf-8")
    images = read(path, None, 0.2, 0)
    assert len(images.test) == 4 and "a0, with; a | comma" in images.group_names


def test_unreadable_files_are_counted_or_left_out(tmp_path: Path) -> None:
    classes(tmp_path / "train")
    classes(tmp_path / "test", 4)
    bad = [tmp_path / "train" / "a" / "3.png", tmp_path / "train" / "b" / "0.png", tmp_path / "test" / "a" / "1.png"]
    for path in bad:
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError) as caught:
        read(tmp_path, None, 0.2, 0)
    assert "3 of 28 images cannot be read, the first: " in str(caught.value)
    assert "`fedproc data check --data" in str(caught.value) and "skip_unreadable true" in str(caught.value)
    images = read(tmp_path, None, 0.2, 0, skip_unreadable=True)
    assert len(images.train) == 18 and len(images.test) == 7 and len(images.skipped) == 3
    assert [row[0] for row in images.listing() if row[4] == "unreadable"] == [
        "train/a/3.png",
        "train/b/0.png",
        "test/a/1.png",
    ]
    levels = [
        f"train/{'ab'[k]}/{p[0, 0, 0]}.png" for k, p in zip(images.train.labels, images.train.images, strict=True)
    ]
    assert tuple(levels) == images.train.names  # the rest moved up together with its labels
