"""Using what was trained, as a new user would."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import fedproc

from fedproc import Experiment, InputError, run
from fedproc.runs.model import load_model


def test_trained_predicted_exported(own: Path, tmp_path: Path) -> None:
    text = "--clients 3 --rounds 6 --epochs 4 --batch-size 16 --lr 0.05 --partition iid --image-size 24"
    flags = text.split(" ")
    done = fedproc("run", "--data", own, *flags, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "result.json").read_text())["final_prototype_accuracy"] > 0.9
    done = fedproc("predict", tmp_path / "run", own / "red", own / "blue" / "1.png", "--out", tmp_path / "p.csv")
    assert done.returncode == 0 and "46 images" in done.stdout, done.stderr
    rows = list(csv.DictReader((tmp_path / "p.csv").open()))
    assert len(rows) == 46
    for row in rows:
        assert 0.5 <= float(row["probability"]) <= 1 and row["class"] in ("red", "blue")
    right = sum(row["nearest_prototype"] == Path(row["path"]).parent.name for row in rows)
    assert right >= 44

    onnx = pytest.importorskip("onnx")
    import onnxruntime

    done = fedproc("export", tmp_path / "run", "--format", "onnx")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "run" / "model.onnx"
    assert json.loads({p.key: p.value for p in onnx.load(path).metadata_props}["class_names"]) == ["blue", "red"]
    model = load_model(tmp_path / "run")
    pixels = torch.randint(0, 256, (5, 3, 24, 24), dtype=torch.uint8)
    session = onnxruntime.InferenceSession(path)
    found = session.run(["probabilities", "z", "similarities"], {"pixels": pixels.float().numpy()})
    for ours, theirs in zip(model(pixels), found, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs, atol=1e-4)


def test_the_loaded_model_scores_what_the_run_says(tmp_path: Path) -> None:
    from fedproc.data import fashion_mini

    done = run(Experiment(method="fedproc", clients=3, rounds=2, epochs=1, device="cpu"), out=tmp_path / "run")
    images = fashion_mini.read()
    predictions = load_model(tmp_path / "run").predict(images.test.images)
    names = [images.class_names[k] for k in images.test.labels]
    accuracy = np.mean([p.label == name for p, name in zip(predictions, names, strict=True)])
    nearest = np.mean([p.prototype_label == name for p, name in zip(predictions, names, strict=True)])
    assert accuracy == pytest.approx(done.result["final_accuracy"])
    assert nearest == pytest.approx(done.result["final_prototype_accuracy"])
    model = load_model(tmp_path / "run")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1e30)
    with pytest.raises(InputError, match="the model gives no number for an image: its weights overflow"):
        model.predict(images.test.images[:3])


def test_solo_and_averaged_models_can_be_chosen(own: Path, tmp_path: Path) -> None:
    given = {"data": str(own), "clients": 2, "rounds": 1, "epochs": 1, "image_size": 20, "device": "cpu"}
    run(Experiment(method="solo", solo={"epochs": 1}, **given), out=tmp_path / "solo")
    with pytest.raises(InputError, match="choose one with client"):
        load_model(tmp_path / "solo")
    done = fedproc("predict", tmp_path / "solo", own / "red" / "1.png", "--client", 1, "--out", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    assert next(csv.DictReader((tmp_path / "p.csv").open()))["nearest_prototype"] == ""
    run(Experiment(method="fedavg", average_weights=0.8, **given), out=tmp_path / "averaged")
    done = fedproc("predict", tmp_path / "averaged", own / "red" / "1.png", "--averaged", "--out", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["nothing", "no model", "damaged", "no image", "empty folder"])
def test_predict_says_what_is_wrong(what: str, own: Path, tmp_path: Path) -> None:
    given = {"data": str(own), "clients": 2, "rounds": 1, "epochs": 1, "image_size": 20, "device": "cpu"}
    model = tmp_path / "run" / "model.safetensors"
    if what != "nothing":
        run(Experiment(method="fedavg", **given), out=tmp_path / "run")
    if what == "no model":
        model.unlink()
    if what == "damaged":
        model.write_bytes(model.read_bytes()[:500])
    (tmp_path / "empty").mkdir()
    image = {"no image": tmp_path / "no.png", "empty folder": tmp_path / "empty"}.get(what, own / "red" / "1.png")
    done = fedproc("predict", tmp_path / "run", image, "--out", tmp_path / "p.csv")
    named = str(image) if what in ("no image", "empty folder") else "model.safetensors"
    assert done.returncode == 2 and named in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


def test_a_model_file_alone_runs_nobodys_code(tmp_path: Path) -> None:
    from conftest import work

    work(tmp_path / "run", network="toy_networks:FrozenNet", method="fedavg", rounds=1)
    with pytest.raises(InputError, match="give network toy_networks:FrozenNet if you trust it"):
        load_model(tmp_path / "run")
    model = load_model(tmp_path / "run", network="toy_networks:FrozenNet")
    assert len(model.predict(np.zeros((2, 1, 16, 16), np.uint8))) == 2


def test_predict_and_export_refuse_a_changed_encoder(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = "from torch import nn\n\ndef made():\n    return nn.Sequential(nn.Flatten(), nn.ReLU())\n"
    (tmp_path / "my_encoder.py").write_text(source)
    given = ["--data", own, "--clients", "2", "--rounds", "1", "--epochs", "1", "--image-size", "20", "--device", "cpu"]
    known = ["--network", "my_encoder:made"]
    done = fedproc("run", "--method", "fedavg", *given, *known, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    image = own / "red" / "1.png"
    (tmp_path / "my_encoder.py").write_text("import math\n" + source)  # nothing that it names
    done = fedproc("predict", tmp_path / "run", image, *known, "--out", tmp_path / "p.csv")
    assert done.returncode == 0, done.stderr
    (tmp_path / "my_encoder.py").write_text(source.replace("ReLU", "Tanh"))
    for words in (["predict", tmp_path / "run", image], ["export", tmp_path / "run"]):
        done = fedproc(*words, *known)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "--network my_encoder:made: its source has changed since" in done.stderr
    done = fedproc("export", tmp_path / "run", "--network", "other:made")
    assert done.returncode == 2 and "which --network other:made is not; give --network my_encoder:made" in done.stderr


def test_encoder_weights_start_from_another_run(own: Path, tmp_path: Path) -> None:
    given = {"data": str(own), "clients": 2, "rounds": 1, "epochs": 1, "image_size": 20, "device": "cpu"}
    run(Experiment(method="fedavg", **given), out=tmp_path / "first")
    weights = tmp_path / "first" / "model.safetensors"
    from fedproc.simulation.preparation import Library
    from fedproc.simulation.session import Session

    session = Session(Experiment(method="fedavg", encoder_weights=weights, **given), Library())
    start = dict(session.setting.network.encoder.named_parameters())
    trained = dict(load_model(tmp_path / "first").network.encoder.named_parameters())
    assert all(torch.equal(start[name], trained[name]) for name in start)
    with pytest.raises(InputError, match=r"encoder_weights .*: 0\.bias .*expected the weights of the same network"):
        Session(Experiment(method="fedavg", encoder_weights=weights, network="resnet18", width=4, **given), Library())
    (tmp_path / "x.safetensors").write_text("no")
    with pytest.raises(InputError, match="not a readable safetensors file"):
        Session(Experiment(method="fedavg", encoder_weights=tmp_path / "x.safetensors", **given), Library())
