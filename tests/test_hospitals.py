"""The story of people with images of their own: three hospitals, from a folder to a decision, typed as they would."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import typed
from PIL import Image

CLASSES = ("normal", "edema", "tumor")
SHARES = {"Aachen": (60, (0.6, 0.3, 0.1)), "Bern": (48, (0.2, 0.6, 0.2)), "Como": (36, (0.3, 0.3, 0.4))}
SIDE = 32


def scan(rng: np.random.Generator, label: str, level: int) -> np.ndarray:
    """128 x 48 pixels of noise; what matters is a mark at the left or the right edge."""
    pixels = rng.normal(level, 18, (48, 128))
    if label == "edema":
        pixels[:, :20] += 90
    if label == "tumor":
        pixels[:, -20:] += 90
    return pixels.clip(0, 255).astype(np.uint8)


def save(pixels: np.ndarray, path: Path, number: int) -> Path:
    """In the formats that come out of hospitals: PNG, JPEG, BMP, 16 bits, a palette, turned with a note of it."""
    kind = ("png", "jpg", "bmp", "png16", "palette", "turned")[number % 6]
    image = Image.fromarray(pixels)
    if kind == "png16":
        path = path.with_suffix(".png")
        Image.fromarray(pixels.astype(np.uint16) << 8).save(path)
    elif kind == "palette":
        path = path.with_suffix(".gif")
        image.convert("P").save(path)
    elif kind == "turned":
        path = path.with_suffix(".jpeg")
        exif = Image.Exif()
        exif[0x0112] = 6  # to be shown turned by a quarter
        image.rotate(90, expand=True).save(path, exif=exif, quality=95)
    else:
        path = path.with_suffix(f".{kind}")
        image.save(path)
    return path


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest with semicolons: three sites, three images of each patient, one damaged file, a fourth hospital with
    test images alone.
    """
    folder = tmp_path_factory.mktemp("hospitals")
    rng = np.random.default_rng(5)
    rows = []
    for site, (count, shares) in SHARES.items():
        (folder / site).mkdir()
        for number in range(count):
            label = str(rng.choice(CLASSES, p=shares))
            path = save(scan(rng, label, 90 if site == "Bern" else 110), folder / site / f"{number:03d}", number)
            split = "test" if number // 3 % 4 == 0 else "train"
            rows.append([path.relative_to(folder), label, f"{site}-{number // 3}", site, split])
    (folder / "Delft").mkdir()
    for number in range(12):
        path = save(scan(rng, CLASSES[number % 3], 100), folder / "Delft" / f"{number:03d}", number)
        rows.append([path.relative_to(folder), CLASSES[number % 3], f"Delft-{number}", "Delft", "test"])
    whole = (folder / "Aachen" / "000.png").read_bytes()
    (folder / "Aachen" / "damaged.png").write_bytes(whole[: len(whole) // 2])
    rows.append(["Aachen/damaged.png", "normal", "Aachen-x", "Aachen", "train"])
    with (folder / "images.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([["path", "label", "group", "site", "split"], *rows])
    return folder


def by_hand(path: Path) -> np.ndarray:
    """The preprocessing that a model file names, without fedproc: turned, eight bits, padded, scaled."""
    from PIL import ImageOps

    with Image.open(path) as opened:
        image = ImageOps.exif_transpose(opened)
        image.load()
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert("RGB")  # a palette may hold colours, so all images are read with them
    width, height = (max(1, round(SIDE / max(image.size) * length)) for length in image.size)
    square = Image.new("RGB", (SIDE, SIDE))
    square.paste(image.resize((width, height), Image.Resampling.BILINEAR), ((SIDE - width) // 2, (SIDE - height) // 2))
    return np.asarray(square, dtype=np.float32).transpose(2, 0, 1)[None]


def test_from_a_folder_to_a_decision(hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = hospitals / "images.csv", tmp_path / "runs"
    code, said, err = typed(f"data check --data {data} --out {tmp_path / 'problems.csv'}", capsys)
    assert code == 1 and "damaged.png" in said + err and "Delft" in said
    assert "damaged.png" in (tmp_path / "problems.csv").read_text()
    words = f"compare --methods fedavg fedproc --seeds 0 --data {data} --image-size {SIDE} --rounds 8 --lr 0.05"
    words += f" --workers 1 --out {out}"
    code, _, err = typed(words, capsys)
    assert code == 2 and "fedproc data check" in err and not (out / "fedproc").exists()
    code, said, err = typed(f"{words} --skip-unreadable", capsys)
    assert code == 0, err
    assert all(site in said for site in (*SHARES, "Delft", "mean"))

    config = json.loads((out / "fedproc" / "seed-0" / "config.json").read_text())
    values = [config[name] for name in ("partition", "clients", "batch_size", "preset")]
    assert values == ["natural", 3, 8, "tuned"]
    assert config["fit"] == "pad"
    with (out / "fedproc" / "seed-0" / "split.csv").open(newline="") as file:
        listed = {row["path"]: row for row in csv.DictReader(file)}
    assert listed["Aachen/damaged.png"]["split"] == "unreadable" and len(listed) == 157

    assert typed(f"report {out} --out {tmp_path / 'page'}", capsys)[0] == 0
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    first = page[page.index("<table") : page.index("</table>")]
    assert all(word in first for word in ("Aachen", "Bern", "Como", "Delft", "alone", "federated gain", "fine-tuned"))
    with (tmp_path / "page" / "tables" / "setting-0-sites.csv").open(newline="") as file:
        sites = {(row["site"], row["method"]): row for row in csv.DictReader(file)}
    assert float(sites["mean", "fedproc"]["federated"]) > 90  # marks at the edges are seen
    gain, como = sites["mean", "fedproc"], sites["Como", "fedproc"]
    assert float(gain["federated gain low"]) <= float(gain["federated gain"]) <= float(gain["federated gain high"])
    assert float(como["groups"]) < 10 and como["federated gain"] and not como["federated gain low"]  # few patients
    assert sites["Delft", "fedproc"]["alone"] == ""  # it only tests

    run = out / "fedproc" / "seed-0"
    with (run / "predictions.csv").open(newline="") as file:
        expected = {row["path"]: row["predicted"] for row in csv.DictReader(file)}
    assert set(expected) == {path for path, row in listed.items() if row["split"] == "test"}
    asked = " ".join(str(hospitals / path) for path in expected)
    code, _, err = typed(
        f"predict {run} {asked} {hospitals / 'Aachen' / 'damaged.png'} --out {tmp_path / 'p.csv'}", capsys
    )
    assert code == 1 and "1 of" in err and "damaged.png" in err  # and nothing else is lost
    with (tmp_path / "p.csv").open(newline="") as file:
        found = {str(Path(row["path"]).relative_to(hospitals)): row for row in csv.DictReader(file)}
    assert {path: found[path]["class"] for path in expected} == expected
    assert found["Aachen/damaged.png"]["class"] == "" and found["Aachen/damaged.png"]["error"]

    onnxruntime = pytest.importorskip("onnxruntime")
    assert typed(f"export {run} --out {tmp_path / 'model.onnx'}", capsys)[0] == 0
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    meta = session.get_modelmeta().custom_metadata_map
    contract = json.loads(meta["preprocessing"])
    steps = [contract[name] for name in ("fit", "size", "layout", "colour", "pad_level")]
    assert steps == ["pad", [SIDE, SIDE], "NCHW", "RGB", 0]
    names = json.loads(meta["class_names"])
    pixels = np.concatenate([by_hand(hospitals / path) for path in expected])
    (probabilities,) = session.run(["probabilities"], {"pixels": pixels})
    assert [names[k] for k in probabilities.argmax(axis=1)] == list(expected.values())
    assert not re.search(r"Traceback", err)
