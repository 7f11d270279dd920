"""What a run and its model say of a person's own images, and a model used as it says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from safetensors import safe_open
from safetensors.torch import save_file

from fedproc import Experiment, InputError, run
from fedproc.cli.commands import execute
from fedproc.data.pictures import Picture
from fedproc.runs.folder import RunFolder
from fedproc.runs.model import load_model
from fedproc.runs.schema import read_config

GIVEN: dict[str, Any] = {"method": "fedavg", "rounds": 1, "epochs": 1, "image_size": 16, "device": "cpu"}


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sites, patients, wide images, a file that is none."""
    folder = tmp_path_factory.mktemp("hospital")
    rng = np.random.default_rng(0)
    rows = ["path;label;group;site"]
    for site in ("north", "south"):
        for place in range(24):
            name = f"{site}-{place}.png"
            Image.fromarray(rng.integers(0, 256, (24, 64), dtype=np.uint8)).save(folder / name)
            rows.append(f"{name};{'ab'[place % 2]};{site}{place // 4}{'ab'[place % 2]};{site}")
    (folder / "north-0.png").write_text("no image")
    (folder / "all.csv").write_text("\n".join(rows), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(hospital: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    e = Experiment(data=str(hospital / "all.csv"), partition="natural", skip_unreadable=True, **GIVEN)
    run(e, out=out)
    return out


def test_the_split_is_on_record(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader((trained / "split.csv").open(encoding="utf-8")))
    assert len(rows) == 48 and [row["path"] for row in rows if row["split"] == "unreadable"] == ["north-0.png"]
    sides = {side: {row["group"] for row in rows if row["split"] == side} for side in ("train", "test")}
    assert not sides["train"] & sides["test"]
    assert {row["site"] for row in rows if row["split"] == "test"} == {"north", "south"}
    held = json.loads((trained / "partition.json").read_text())["counts"]
    assert sum(map(sum, held)) == sum(row["split"] == "train" for row in rows)


def test_a_run_says_how_many_files_it_left_out(
    hospital: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(hospital / "all.csv"), "--partition", "natural", "--device", "cpu", "--rounds", "1"]
    words += ["--epochs", "1", "--method", "fedavg", "--out", str(tmp_path / "run")]
    with pytest.raises(InputError, match=r"north-0\.png: not a readable image.*data check"):
        execute(["run", *words])
    assert not (tmp_path / "run").exists()
    assert execute(["run", *words, "--skip-unreadable"]) == 0
    assert "1 image files cannot be read and are left out, as split.csv says" in capsys.readouterr().out


def test_named_data_have_no_split_file(tmp_path: Path) -> None:
    run(Experiment(method="fedavg", clients=2, rounds=1, epochs=1, device="cpu"), out=tmp_path / "run")
    assert not (tmp_path / "run" / "split.csv").exists()


def test_an_old_run_was_cropped(trained: Path) -> None:
    config = read_config(trained / "config.json") or {}
    assert config["fit"] == "pad"
    (old := trained.parent / "old").mkdir()
    told = {name: value for name, value in config.items() if name not in ("fit", "skip_unreadable", "format")}
    (old / "config.json").write_text(json.dumps(told))
    folder = RunFolder(old)
    try:
        with pytest.raises(InputError, match=r"fit pad: the run in .* has crop; take that"):
            folder.check({**config, "fingerprint": "another, since pixels differ"}, None)
    finally:
        folder.close()


def test_a_model_knows_how_its_images_are_fitted(trained: Path, hospital: Path, tmp_path: Path) -> None:
    model, picture = load_model(trained), Picture.at(hospital / "north-1.png")
    assert model.fit == "pad" and np.array_equal(model.pixels(picture), picture.decode(16, 1, "pad"))
    with safe_open(trained / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fedproc"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    contract = about.pop("preprocessing")
    del about["checksum"]  # which files of that time had none of
    assert contract["fit"] == "pad" and contract["pad_level"] == 0 and contract["size"] == [16, 16]
    save_file(tensors, tmp_path / "old.safetensors", {"fedproc": json.dumps(about)})
    old = load_model(tmp_path / "old.safetensors")
    assert old.fit == "crop" and np.array_equal(old.pixels(picture), picture.decode(16, 1, "crop"))
    strange = {**about, "preprocessing": {**contract, "fit": "squeeze"}}
    save_file(tensors, tmp_path / "new.safetensors", {"fedproc": json.dumps(strange)})
    with pytest.raises(InputError, match="'squeeze', which this version does not know"):
        load_model(tmp_path / "new.safetensors")


@pytest.mark.parametrize("colours", [False, True])
def test_onnx_fed_by_the_contract_gives_the_same_classes(tmp_path: Path, colours: bool) -> None:
    """By the very lines of docs/own-images.md, of images of 8 and 16 bits."""
    onnxruntime = pytest.importorskip("onnxruntime")
    rng, images = np.random.default_rng(1), tmp_path / "images"
    for name, low in (("dark", 0), ("light", 128)):
        (images / name).mkdir(parents=True)
        for place in range(8):
            pixels = rng.integers(low, low + 128, (24, 64), dtype=np.uint8)
            wide = pixels.astype(np.uint16) << 8
            made = Image.fromarray(np.stack([pixels] * 3, -1)) if colours else Image.fromarray(pixels)
            (Image.fromarray(wide) if place % 2 else made).save(images / name / f"{place}.png")
    out = tmp_path / "run"
    e = Experiment(data=str(images), clients=2, partition="iid", min_size=2, **{**GIVEN, "rounds": 3})
    run(e, out=out)
    assert execute(["export", str(out), "--out", str(tmp_path / "model.onnx")]) == 0
    page = (Path(__file__).parents[2] / "docs" / "own-images.md").read_text(encoding="utf-8")
    lines = page.partition("```python\nsession = ")[2].partition("```")[0]
    lines = "session = " + lines.replace('"model.onnx"', "model")
    paths = sorted(images.glob("*/*.png"))
    given: dict[str, Any] = {"onnxruntime": onnxruntime, "json": json, "np": np, "Image": Image, "ImageOps": ImageOps}
    found = []
    for path in paths:
        place = {**given, "path": path, "model": str(tmp_path / "model.onnx")}
        exec(lines, place)
        found.append((place["names"][place["probabilities"].argmax()], float(place["probabilities"].max())))
    assert execute(["predict", str(out), *map(str, paths), "--out", str(tmp_path / "p.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [name for name, _ in found] == [row["class"] for row in rows]
    assert [share for _, share in found] == pytest.approx([float(row["probability"]) for row in rows], abs=1e-4)
