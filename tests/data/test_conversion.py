"""DICOM files of several kinds made into PNG files and a manifest, and the manifest read back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pydicom")
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from fedproc import InputError, RunError
from fedproc.cli.commands import execute
from fedproc.data.conversion import Settings, convert
from fedproc.data.own import read

RAMP = np.linspace(-1000, 1000, 64).reshape(8, 8).round().astype(np.int16)  # Hounsfield units


def write(path: Path, pixels: np.ndarray[Any, Any] = RAMP, patient: str = "DOE^1", **more: Any) -> Path:
    """A CT slice with stored values 1000 above its levels, unless told otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = CTImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    made.SOPClassUID, made.SOPInstanceUID = CTImageStorage, made.file_meta.MediaStorageSOPInstanceUID
    stored = (pixels + 1000).astype(np.uint16) if pixels.dtype == np.int16 else pixels
    about = {
        "PatientID": patient,
        "PatientName": "Doe^Jane",
        "InstitutionName": "St. Mary",
        "Modality": "CT",
        "PhotometricInterpretation": "MONOCHROME2",
        "SamplesPerPixel": 1,
        "Rows": stored.shape[-2],
        "Columns": stored.shape[-1],
        "BitsAllocated": 8 * stored.itemsize,
        "BitsStored": 8 * stored.itemsize,
        "HighBit": 8 * stored.itemsize - 1,
        "PixelRepresentation": 0,
        "RescaleSlope": 1,
        "RescaleIntercept": -1000 if pixels.dtype == np.int16 else 0,
        **more,
    }
    for name, value in about.items():
        setattr(made, name, value)
    made.PixelData = stored.tobytes()
    made.save_as(path, enforce_file_format=True)
    return path


def levels(out: Path) -> list[np.ndarray[Any, Any]]:
    rows = csv.DictReader((out / "manifest.csv").open(encoding="utf-8"))
    return [np.asarray(Image.open(out / row["path"])) for row in rows]


def test_one_window_for_all_files(tmp_path: Path) -> None:
    write(tmp_path / "in" / "sick" / "1.dcm")
    write(tmp_path / "in" / "well" / "2.dcm", np.full((8, 8), 200, np.int16), "DOE^2")  # flat: no range of its own
    found = convert(tmp_path / "in", tmp_path / "out", Settings(window=(0.0, 800.0)))
    assert found.images == 2 and not found.failed
    ramp, flat = levels(tmp_path / "out")
    expected = np.rint(np.clip((RAMP + 400) / 800, 0, 1) * 65535)
    assert ramp.dtype == np.uint16 and np.abs(ramp.astype(np.int64) - expected).max() <= 1
    assert (flat == round(0.75 * 65535)).all()


def test_a_window_from_percentiles_of_everything_is_written_down(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a" / "1.dcm")
    write(tmp_path / "in" / "b" / "2.dcm", np.full((8, 8), 3000, np.int16))
    convert(tmp_path / "in", tmp_path / "out", Settings(percentiles=(0, 100)))
    said = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert said["window"] == {"low": -1000.0, "high": 3000.0} and said["modalities"] == {"CT": 2}
    assert "percentiles (0, 100)" in said["window_from"] and said["failed"] == 0


def test_inverted_padded_many_frames_and_colours(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "a"
    write(folder / "1.dcm", PhotometricInterpretation="MONOCHROME1", PixelPaddingValue=0)
    write(folder / "2.dcm", np.stack([RAMP, RAMP[::-1]]), NumberOfFrames=2)
    colour = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    more = {"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3, "PlanarConfiguration": 0, "Rows": 8, "Columns": 8}
    write(folder / "3", colour, BurnedInAnnotation="YES", **more)  # without an ending, as scanners write them
    found = convert(tmp_path / "in", tmp_path / "out", Settings(window=(0.0, 2000.0)))
    inverted, first, second, coloured = levels(tmp_path / "out")
    plain = np.rint((RAMP + 1000) / 2000 * 65535).astype(np.int64)
    assert inverted[0, 0] == 0  # padding, which would be white
    assert np.abs(inverted.astype(np.int64) - (65535 - plain))[RAMP > -1000].max() <= 1
    assert np.abs(first.astype(np.int64) - plain).max() <= 1 and (second == first[::-1]).all()
    assert (coloured == colour).all() and found.burnt_in == 1


def test_nobodys_name_goes_along(tmp_path: Path) -> None:
    for i, patient in enumerate(["P-77", "P-77", "P-88"]):
        write(tmp_path / "in" / "a" / f"doe-jane-{i}.dcm", patient=patient, InstitutionName="St. Mary" if i else "")
    convert(tmp_path / "in", tmp_path / "out", Settings())
    rows = list(csv.DictReader((tmp_path / "out" / "manifest.csv").open()))
    assert rows[0]["group"] == rows[1]["group"] != rows[2]["group"]
    assert [row["site"] for row in rows] == ["unknown", "St. Mary", "St. Mary"]
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.suffix for path in left} == {".png", ".csv", ".json"}  # no key, no list of what was done
    for path in left:
        content = path.read_bytes().lower() + path.name.encode()
        assert not any(name in content for name in (b"p-77", b"p-88", b"doe", b"jane"))


def test_a_kept_key_gives_the_same_pseudonyms(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a" / "1.dcm")
    for name in ("one", "two"):
        convert(tmp_path / "in", tmp_path / name, Settings(key=tmp_path / "key"))
    convert(tmp_path / "in", tmp_path / "three", Settings())
    one, two, three = ((tmp_path / name / "manifest.csv").read_text() for name in ("one", "two", "three"))
    assert one == two != three and (tmp_path / "key").stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="inside out"):
        execute(
            ["data", "convert", str(tmp_path / "in"), "--out", str(tmp_path / "x"), "--key", str(tmp_path / "x/key")]
        )


def test_a_bad_file_ends_nothing_and_a_stopped_conversion_goes_on(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    for i in range(40):
        write(source / "ab"[i % 2] / f"{i}.dcm", RAMP + np.int16(i), f"p{i}")
    (source / "a" / "bad.dcm").write_bytes(write(source / "a" / "bad.dcm").read_bytes()[:-20])

    def stop(what: str, done: int, total: int) -> None:
        if what == "converting" and done < total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, Settings(), stop)
    some = {path: path.stat().st_mtime_ns for path in (out / "images").iterdir()}
    assert 0 < len(some) < 40 and not (out / "manifest.csv").exists()
    with (out / "progress.jsonl").open("a") as file:
        file.write('{"file": "cut o')
    with pytest.raises(InputError, match="that is not finished; take the same, or another out"):
        convert(source, out, Settings(window=(0, 1)))
    found = convert(source, out, Settings())
    assert found.images == 40 and len(found.failed) == 1 and "bad.dcm: its pixels cannot be read" in found.failed[0]
    assert all(path.stat().st_mtime_ns == when for path, when in some.items())  # not made again
    images = read(out / "manifest.csv", None, 0.2, 0)
    assert images.class_names == ("a", "b") and images.channels == 1 and images.site_names == ("St. Mary",)
    with pytest.raises(InputError, match="already there"):
        convert(source, out, Settings())
    with pytest.raises(RunError, match="1 files could not be converted"):
        execute(["data", "convert", str(source), "--out", str(tmp_path / "again")])


@pytest.mark.parametrize("by", ["path", "patient"])
def test_labels_from_a_file(by: str, tmp_path: Path) -> None:
    write(tmp_path / "in" / "series" / "1.dcm", patient="p1")
    write(tmp_path / "in" / "series" / "2.dcm", patient="p2")
    (tmp_path / "l.csv").write_text(f"{by},label\n" + {"path": "series/1.dcm", "patient": "p1"}[by] + ",sick\n")
    found = convert(tmp_path / "in", tmp_path / "out", Settings(labels=tmp_path / "l.csv"))
    assert found.images == 1 and "series/2.dcm: labels has no label for it" in found.failed[0]
    assert next(csv.DictReader((tmp_path / "out" / "manifest.csv").open()))["label"] == "sick"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--window", "40", "0"], "expected a width above 0"),
        (["--percentiles", "50", "10"], "the smaller one first"),
        (["--labels", "nowhere.csv"], "not a readable CSV file"),
        ([], "no DICOM file in it"),
    ],
)
def test_what_cannot_be_done(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InputError, match=said):
        execute(["data", "convert", str(tmp_path / "in"), "--out", str(tmp_path / "out"), *words])


def test_what_is_no_dicom_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Read by force, a text looks like a file without pixels."""
    write(tmp_path / "in" / "sick" / "1.dcm")
    (tmp_path / "in" / "sick" / "junk.dcm").write_text("not a DICOM file at all, but long enough to be read as one")
    (tmp_path / "in" / "sick" / "empty.dcm").write_bytes(b"")
    with pytest.raises(RunError, match="2 files could not be converted"):
        execute(["data", "convert", str(tmp_path / "in"), "--to", "png", "--out", str(tmp_path / "out")])
    said = " ".join("".join(capsys.readouterr()).split())
    assert "junk.dcm: not a readable DICOM file" in said and "empty.dcm" in said
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["failed"] == 2
