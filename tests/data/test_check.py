"""`fedproc data check` names everything at once."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedproc import InputError
from fedproc.cli.commands import execute
from fedproc.data.check import check


def noise(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    for place, name in enumerate(("train/a", "train/b", "test/a", "test/b")):
        for i in range(5):
            noise(tmp_path / "data" / name / f"{i}.png", 10 * place + i)
    return tmp_path / "data"


def kinds(folder: Path, **given: bool) -> dict[str, bool]:
    return {problem.kind: problem.stops for problem in check(folder, 0.2, 0, **given).problems}


def test_nothing_is_wrong(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["data", "check", "--data", str(sound)]) == 0
    said = capsys.readouterr().out
    assert "20 images can be read; nothing is wrong" in said and "5 + 5" in said


def test_all_of_it_at_once(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sound / "train" / "a" / "1.png").write_text("no image")
    noise(sound / "test" / "only" / "0.png", 99)
    (sound / "train" / "empty").mkdir()
    noise(sound / "train" / "A" / "0.png", 77)
    with Image.open(sound / "train" / "a" / "0.png") as image:
        image.save(sound / "test" / "b" / "copy.bmp")  # the same pixels in another format
    assert execute(["data", "check", "--data", str(sound), "--out", str(tmp_path / "found.csv")]) == 1
    rows = list(csv.DictReader((tmp_path / "found.csv").open()))
    found = {row["kind"]: row["stops_training"] for row in rows}
    assert found == {
        "class names alike": "yes",
        "class only in test": "yes",
        "empty class": "yes",
        "unreadable": "yes",
        "a class without test images": "no",
        "duplicate with different labels": "no",
    }
    (text,) = {row["text"] for row in rows if row["kind"].startswith("duplicate")}
    assert text.endswith("the same pixels, in train and in test, labelled a and b")
    assert "4 that stop training, 2 to look at" in capsys.readouterr().out


def test_unreadable_files_stop_nothing_where_they_are_skipped(sound: Path) -> None:
    (sound / "train" / "a" / "1.png").write_text("no image")
    assert kinds(sound) == {"unreadable": True} and kinds(sound, skip_unreadable=True) == {"unreadable": False}
    assert execute(["data", "check", "--data", str(sound), "--skip-unreadable"]) == 0


def test_groups_and_sites(tmp_path: Path) -> None:
    lines = ["path,label,group,site,split"]
    for i, (group, site, side) in enumerate(
        [("p1", "n", "train"), ("p1", "s", "test"), ("p2", "n", "train"), ("p2", "s", "train"), ("p3", "S", "test")]
    ):
        noise(tmp_path / f"{i}.png", i)
        lines.append(f"{i}.png,a,{group},{site},{side}")
    lines += ["gone.png,a,p9,n,train", "4.png,a,p3,S,test", "0.png,a,p1,n"]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    assert kinds(tmp_path / "list.csv") == {
        "a bad line": True,
        "a group on both sides": True,
        "listed twice": True,
        "a group in two sites": False,
        "one class only": False,
        "site: alike": False,
        "site: only tests": False,
        "site: without test images": False,
    }


def test_bytes_that_are_the_same(sound: Path) -> None:
    (sound / "train" / "a" / "copy.png").write_bytes((sound / "train" / "a" / "0.png").read_bytes())
    (problem,) = check(sound, 0.2, 0).problems
    assert problem.kind == "duplicate" and problem.text.endswith("the same bytes") and len(problem.paths) == 2


def test_only_for_own_images() -> None:
    with pytest.raises(InputError, match="expected the path of your own image folder or CSV file"):
        execute(["data", "check", "--data", "cifar10"])


def test_the_hospitals_of_the_docs(tmp_path: Path) -> None:
    made = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "hospitals.py"))
    made["make"](tmp_path / "hospitals")
    found = check(tmp_path / "hospitals" / "images.csv", 0.2, 0)
    assert [problem.kind for problem in found.problems] == ["unreadable", "duplicate with different labels"]
    assert sum(found.counts.values()) == 144 and found.counts["none", "west", "train"] == 13
