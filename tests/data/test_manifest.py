from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedproc import InputError
from fedproc.data import load
from fedproc.data.own import read
from fedproc.data.partition import dirichlet, hold_out, iid, natural

PATIENTS = {"p1": "sick", "p2": "sick", "p3": "sick", "p4": "well", "p5": "well", "p6": "well"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for patient, label in PATIENTS.items():
        for i in range(4):
            level = 200 if label == "sick" else 50
            Image.new("L", (30, 30), level + int(patient[1])).save(tmp_path / f"{patient}_{i}.png")
    return tmp_path


def write(folder: Path, header: str, rows: list[str]) -> Path:
    path = folder / "images.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def rows(*columns: str) -> list[str]:
    lines = []
    for patient, label in PATIENTS.items():
        for i in range(4):
            values = {"group": patient, "site": "north" if i % 2 else "south", "split": "test" if i == 0 else "train"}
            lines.append(",".join([f"{patient}_{i}.png", label, *(values[c] for c in columns)]))
    return lines


def test_plain(folder: Path) -> None:
    images = load(str(write(folder, "path,label", rows())), None, None, 0.25, 0)
    assert images.class_names == ("sick", "well") and images.channels == 1
    assert len(images.test) == 6 and len(images.train) == 18


@pytest.mark.parametrize("seed", range(5))
def test_a_patient_stays_on_one_side(folder: Path, seed: int) -> None:
    images = read(write(folder, "path,label,group", rows("group")), 30, 0.3, seed)
    patients = [{int(level) % 10 for level in split.images[:, 0, 0, 0]} for split in (images.train, images.test)]
    assert not patients[0] & patients[1]
    assert len(images.test) == 16 or len(images.test) == 8


def test_sites_and_splits_of_its_own(folder: Path) -> None:
    images = read(write(folder, "path,label,split,site", rows("split", "site")), None, 0.2, 0)
    assert len(images.test) == 6 and images.site_names == ("north", "south")
    assert images.train.sites is not None and sorted(set(images.train.sites.tolist())) == [0, 1]


@pytest.mark.parametrize(
    ("header", "lines", "words"),
    [
        ("path", ["p1_0.png"], "has no column label"),
        ("path,label,age", ["p1_0.png,sick,40"], "has a column 'age'"),
        ("path,label", [], "lists no images"),
        ("path,label", ["p1_0.png,sick", "p1_1.png,"], "line 3: label is empty"),
        ("path,label", ["p1_0.png,sick", "nowhere.png,sick"], "line 3: "),
        ("path,label", ["p1_0.png,sick", "p1_0.png,sick"], "lists p1_0.png more than once"),
        ("path,label", ["p1_0.png,sick,extra"], "line 2: more fields than the 2"),
        ("path,label", ["p1_0.png"], "line 2: label is empty"),
        ("path,label,split", ["p1_0.png,sick,later"], "line 2: split is 'later'"),
        (
            "path,label,split",
            ["p1_0.png,sick,train", "p4_0.png,well,test"],
            "the test images have a class well that the training images do not have",
        ),
        ("path,label,group", ["p1_0.png,sick,p1", "p1_1.png,sick,p1"], "one group per class"),
        ("path,label", ['"p1_0.png,sick'], "not a readable CSV file"),
        ("path,label", ["p1_0.png,sick", "./p1_0.png,sick"], "lists p1_0.png more than once"),
        (
            "path,label,split,group",
            ["p1_0.png,sick,train,p1", "p1_1.png,sick,test,p1"],
            "line 3: group p1 is in train and",
        ),
    ],
)
def test_damage_is_named_by_line(header: str, lines: list[str], words: str, folder: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(write(folder, header, lines), None, 0.2, 0)
    assert words in str(caught.value) and "images.csv" in str(caught.value)


def test_files_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"path,label\n\xff\xfe,x\n")
    with pytest.raises(InputError, match=r"x\.csv: not a readable CSV file"):
        read(tmp_path / "x.csv", None, 0.2, 0)
    with pytest.raises(InputError, match=r"y\.csv: not a readable CSV file: No such file"):
        read(tmp_path / "y.csv", None, 0.2, 0)


def test_a_site_that_is_only_tested_on(folder: Path) -> None:
    lines = [f"p{i}_0.png,{PATIENTS[f'p{i}']},train,north" for i in (1, 2, 4, 5)]
    lines += ["p3_0.png,sick,test,abroad", "p6_0.png,well,test,abroad"]
    images = read(write(folder, "path,label,split,site", lines), None, 0.2, 0)
    assert images.site_names == ("north", "abroad") and images.test.sites is not None
    assert images.test.sites.tolist() == [1, 1] and len(natural(images.train.sites)) == 1


def test_validation_keeps_patients_together(folder: Path) -> None:
    images = read(write(folder, "path,label,group", rows("group")), 30, 0.3, 0)
    groups = images.train.groups
    assert groups is not None
    ((training, validation),) = hold_out([np.arange(len(images.train))], images.train.labels, 0.3, 0, groups)
    assert len(validation) and not set(groups[training]) & set(groups[validation])


@pytest.mark.parametrize("fraction", [0.1, 0.3])
def test_validation_keeps_patients_together_whose_images_lie_with_several_clients(fraction: float) -> None:
    groups = np.repeat(np.arange(60), 5)
    labels = np.arange(300) % 3
    for shares in (
        iid(labels, 4, 0),
        dirichlet(labels, 4, 0.5, 0),
        [np.arange(300)],
        [np.arange(5), np.arange(5, 300)],
    ):
        held = hold_out(shares, labels, fraction, 0, groups)
        training, validation = (np.concatenate(parts) for parts in zip(*held, strict=True))
        assert not set(groups[training]) & set(groups[validation])
        assert len(validation) == pytest.approx(fraction * 300, rel=0.35)
        assert all(len(own) for own, _ in held)


def test_another_grouping_is_other_data(folder: Path) -> None:
    one, two = (read(write(folder, "path,label,group", lines), 30, 0.3, 0) for lines in (rows("group"), rows("group")))
    assert one.fingerprint == two.fingerprint and one.train.groups is not None
    regrouped = replace(one, train=replace(one.train, groups=one.train.groups[::-1].copy()))
    assert regrouped.fingerprint != one.fingerprint


def test_a_share_is_drawn_where_nothing_is_decided(folder: Path) -> None:
    """South is only tested on, of north a share is drawn."""
    lines = [f"{line},{'test' if line.endswith('south') else ''}" for line in rows("site")]
    images = read(write(folder, "path,label,site,split", lines), None, 0.25, 0)
    assert images.train.sites is not None and images.test.sites is not None
    assert {images.site_names[site] for site in images.train.sites} == {"north"}
    assert [images.site_names[site] for site in images.test.sites].count("south") == 12
    assert len(images.train) + len(images.test) == 24 and len(images.test) > 12


def test_a_group_is_decided_as_a_whole(folder: Path) -> None:
    lines = ["p1_0.png,sick,p1,train", "p1_1.png,sick,p1,", "p4_0.png,well,p4,test"]
    with pytest.raises(InputError, match="line 3: group p1 is in train, and in lines without a side"):
        read(write(folder, "path,label,group,split", lines), None, 0.2, 0)


def test_another_encoding_is_named(folder: Path) -> None:
    path = folder / "images.csv"
    path.write_bytes("path,label\np1_0.png,Ödem\n".encode("cp1252"))
    with pytest.raises(InputError, match=r"byte 20 is no UTF-8 .*; save it as UTF-8"):
        read(path, None, 0.2, 0)
