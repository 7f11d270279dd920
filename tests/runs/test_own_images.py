"""What a run and its model say of a person's own images, and a model used as it says."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from fedproc import Experiment, InputError, RunError, run
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


def test_onnx_fed_by_the_contract_gives_the_same_classes(trained: Path, hospital: Path, tmp_path: Path) -> None:
    """With nothing of fedproc: what docs/own-images.md shows."""
    onnxruntime = pytest.importorskip("onnxruntime")
    assert execute(["export", str(trained), "--out", str(tmp_path / "model.onnx")]) == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    contract, names = json.loads(about["preprocessing"]), json.loads(about["class_names"])
    paths = sorted(hospital.glob("south-*.png"))
    batch = []
    for path in paths:
        image, side = Image.open(path).convert("L"), contract["size"][0]
        scale = side / max(image.size)
        width, height = (max(1, round(scale * length)) for length in image.size)
        square = Image.new("L", (side, side), contract["pad_level"])
        square.paste(
            image.resize((width, height), Image.Resampling.BILINEAR), ((side - width) // 2, (side - height) // 2)
        )
        batch.append(np.asarray(square, np.float32)[None])
    (found,) = session.run(["probabilities"], {"pixels": np.stack(batch)})
    assert execute(["predict", str(trained), *map(str, paths), "--out", str(tmp_path / "p.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert [names[k] for k in found.argmax(axis=1)] == [row["class"] for row in rows]
    assert contract["mean"] == [0.5] and contract["range"] == [0, 255] and contract["layout"] == "NCHW"


def test_one_bad_image_does_not_end_a_prediction(trained: Path, hospital: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"1 of 48 images cannot be read, the first: .*north-0\.png"):
        execute(["predict", str(trained), str(hospital), "--out", str(tmp_path / "p.csv")])
    rows = {Path(row["path"]).name: row for row in csv.DictReader((tmp_path / "p.csv").open())}
    assert len(rows) == 48 and rows["north-0.png"]["class"] == "" and "format" in rows["north-0.png"]["error"]
    assert all(row["class"] in "ab" and row["error"] == "" for name, row in rows.items() if name != "north-0.png")


def test_a_clients_model_that_was_not_kept(trained: Path, hospital: Path, tmp_path: Path) -> None:
    words = ["predict", str(trained), str(hospital / "south-1.png"), "--out", str(tmp_path / "p.csv"), "--client", "1"]
    with pytest.raises(InputError, match="the run kept no clients' models; train with keep_clients true"):
        execute(words)
    (trained / "models").mkdir()
    (trained / "models" / "client-000.safetensors").touch()
    with pytest.raises(InputError, match="no such model; the run kept 1, of clients 0 to 0"):
        execute(words)
