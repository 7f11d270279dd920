"""A folder of DICOM files made into PNG files and a CSV file that lists them: one window for all, no name of a patient.

While it is under way OUT/progress.jsonl says what is done; the same call goes on from there, and removes it at the end.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedproc.data.dicom import Dicom, Window, is_dicom
from fedproc.data.names import normal
from fedproc.data.pictures import concurrently, tried
from fedproc.errors import InputError
from fedproc.files import naming, write_file, write_json

PROGRESS, MANIFEST, SUMMARY = "progress.jsonl", "manifest.csv", "conversion.json"
TEMPORARY = ".part"
CHUNK = 32
SAMPLED = 20_000_000  # levels that percentiles are taken of, over all files
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """What is asked for: a window by its centre and width, or by percentiles of all levels; labels by path or patient,
    or the name of the first folder below; the file that holds the key of the pseudonyms, if it is to be kept.
    """

    window: tuple[float, float] | None = None
    percentiles: tuple[float, float] = (0.5, 99.5)
    labels: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of it: images written, files without pixels, what was wrong with files, and the window."""

    images: int
    without_pixels: int
    failed: list[str]
    window: Window | None
    burnt_in: int
    modalities: Mapping[str, int]


def convert(
    source: Path, out: Path, settings: Settings, progress: Progress = lambda what, done, total: None
) -> Outcome:
    """Write OUT/images/*.png, OUT/manifest.csv and OUT/conversion.json."""
    if not source.is_dir():
        raise InputError(f"{source}: no such folder")
    labels = _Labels.read(source, settings.labels)
    paths = [path for path in sorted(source.rglob("*")) if path.is_file() and is_dicom(path)]
    paths = [path for path in paths if out.resolve() not in path.resolve().parents]
    if not paths:
        raise InputError(f"{source}: no DICOM file in it")
    job = _Job(source, out, settings, labels, progress)
    return job.run(paths)


class _Job:
    def __init__(self, source: Path, out: Path, settings: Settings, labels: _Labels, progress: Progress) -> None:
        self._source, self._out, self._settings, self._labels, self._progress = source, out, settings, labels, progress
        self._file = out / PROGRESS

    def run(self, paths: Sequence[Path]) -> Outcome:
        begun = self._begun()
        key = bytes.fromhex(begun["key"]) if begun and begun.get("key") else _key(self._settings.key)
        asked = {"window": self._settings.window, "percentiles": self._settings.percentiles}
        if begun is None:
            window = self._window(paths)
            head = {"source": str(self._source.resolve()), "asked": asked, "window": asdict(window) if window else None}
            if self._settings.key is None:
                head["key"] = key.hex()
            with naming(self._out):
                (self._out / "images").mkdir(parents=True, exist_ok=True)
                write_file(self._file, lambda path: path.write_text(json.dumps(head) + "\n", encoding="utf-8"))
                self._file.chmod(0o600)
            done: dict[str, dict[str, Any]] = {}
        else:
            if begun["source"] != str(self._source.resolve()) or begun["asked"] != json.loads(json.dumps(asked)):
                raise InputError(
                    f"--out {self._out}: holds a conversion of {begun['source']} with another window that is not "
                    "finished; take the same, or another --out"
                )
            window = Window(**begun["window"]) if begun["window"] else None
            done = begun["done"]
        failed: list[str] = []
        with naming(self._file), self._file.open("a", encoding="utf-8") as file:
            todo = [path for path in paths if self._name(path) not in done]
            for start in range(0, len(todo), CHUNK):
                some = todo[start : start + CHUNK]
                made = concurrently(lambda path: tried(lambda: self._one(path, window, key)), some)
                for path, found in zip(some, made, strict=True):
                    if isinstance(found, InputError):
                        failed.append(str(found))
                        continue
                    done[self._name(path)] = found
                    file.write(json.dumps({"file": self._name(path), **found}) + "\n")
                file.flush()
                self._progress("converting", len(paths) - len(todo) + start + len(some), len(paths))
        return self._finish([done[self._name(path)] for path in paths if self._name(path) in done], failed, window)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._source).as_posix()

    def _begun(self) -> dict[str, Any] | None:
        """What an unfinished conversion has done, or None where nothing was begun."""
        if not self._file.is_file():
            if self._out.exists() and (not self._out.is_dir() or any(self._out.iterdir())):
                raise InputError(f"--out {self._out}: already there; expected a new or empty folder")
            return None
        whole = self._file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()  # a cut line was not done
        with naming(self._file):
            write_file(self._file, lambda path: path.write_text("\n".join(whole) + "\n", encoding="utf-8"))
        try:
            head, *rest = (json.loads(line) for line in whole)
            return {**head, "done": {each.pop("file"): each for each in rest}}
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{self._file}: cannot be read; remove {self._out} and begin again") from error

    def _window(self, paths: Sequence[Path]) -> Window | None:
        """The one asked for, or from percentiles of levels taken evenly from every file."""
        if self._settings.window is not None:
            centre, width = self._settings.window
            return Window(centre - width / 2, centre + width / 2)
        most = max(64, SAMPLED // len(paths))
        levels = []
        for start in range(0, len(paths), CHUNK):
            some = paths[start : start + CHUNK]
            found = concurrently(lambda path: tried(lambda: _sample(path, most)), some)
            levels += [each for each in found if not isinstance(each, InputError)]
            self._progress("finding the window", start + len(some), len(paths))
        pooled = np.concatenate(levels) if levels else np.zeros(0, np.float32)
        if not len(pooled):
            return None  # colours alone, or nothing that can be read
        low, high = (float(level) for level in np.percentile(pooled, self._settings.percentiles))
        return Window(low, high if high > low else low + 1.0)

    def _one(self, path: Path, window: Window | None, key: bytes) -> dict[str, Any]:
        """Write the frames of one file; what the manifest will say of them."""
        dicom = Dicom(path)
        if not dicom.has_pixels:
            return {"images": []}
        header = dicom.header
        label = self._labels.of(self._name(path), header.patient)
        stem = _pseudonym(key, "file", self._name(path), 16)
        images = []
        for number, pixels in enumerate(_pixels(dicom, window), start=1):
            name = f"images/{stem}-{number:04d}.png"
            temporary = self._out / f"{name}{TEMPORARY}"
            Image.fromarray(pixels).save(temporary, "PNG")
            temporary.replace(self._out / name)
            images.append(name)
        return {
            "images": images,
            "label": label,
            "group": _pseudonym(key, "patient", header.patient or f"\0{self._name(path)}", 12),
            "site": header.institution,
            "modality": header.modality,
            "burnt_in": header.burnt_in,
        }

    def _finish(self, done: Sequence[Mapping[str, Any]], failed: list[str], window: Window | None) -> Outcome:
        held = [each for each in done if each["images"]]
        if not held:
            raise InputError(f"{self._source}: no image came of it; the first: {failed[0] if failed else 'no pixels'}")
        sites = any(each["site"] for each in held)
        columns = ["path", "label", "group", *(["site"] if sites else [])]
        rows = [
            [name, each["label"], each["group"], *([normal(each["site"]) or "unknown"] if sites else [])]
            for each in held
            for name in each["images"]
        ]

        def fill(path: Path) -> None:
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([columns, *rows])

        found = Outcome(
            images=len(rows),
            without_pixels=len(done) - len(held),
            failed=failed,
            window=window,
            burnt_in=sum(bool(each["burnt_in"]) for each in held),
            modalities=dict(sorted(Counter(each["modality"] or "unknown" for each in held).items())),
        )
        asked = self._settings
        window_from = "given" if asked.window is not None else f"percentiles {asked.percentiles} of all levels"
        write_file(self._out / MANIFEST, fill)
        write_json(
            self._out / SUMMARY,
            {
                **asdict(found),
                "failed": len(failed),  # whose names may name people
                "window_from": window_from if window else None,
                "pseudonyms": "the key was kept apart" if asked.key else "the key was thrown away",
            },
        )
        self._file.unlink()
        return found


@dataclass(frozen=True)
class _Labels:
    """The class of each file: from a CSV of path,label or patient,label, or the first folder's name."""

    by: str = ""
    known: Mapping[str, str] | None = None

    @classmethod
    def read(cls, source: Path, path: Path | None) -> _Labels:
        if path is None:
            return cls()
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"--labels {path}: not a readable CSV file: {error}") from error
        by = next((name for name in ("path", "patient") if rows and name in rows[0]), None)
        if by is None or "label" not in rows[0]:
            raise InputError(f"--labels {path}: expected columns path,label or patient,label, separated by commas")
        return cls(by, {(row[by] or "").strip(): (row["label"] or "").strip() for row in rows})

    def of(self, name: str, patient: str) -> str:
        if self.known is not None:
            label = self.known.get(name if self.by == "path" else patient, "")
            if not label:
                raise InputError(f"{name}: --labels has no label for it")
            return normal(label)
        first, below, _ = name.partition("/")
        if not below:
            raise InputError(f"{name}: lies in no folder that would be its class; give --labels FILE.csv")
        return normal(first)


def _key(path: Path | None) -> bytes:
    """Of the pseudonyms: the one in a file, which is made if it is not there, or a new one."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        if path.exists():
            return bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise InputError(f"--key {path}: cannot be read as a key: {error}") from error
    made = secrets.token_bytes(32)
    with naming(path):
        path.touch(mode=0o600)
        path.write_text(made.hex() + "\n", encoding="ascii")
    return made


def _pseudonym(key: bytes, what: str, name: str, digits: int) -> str:
    return hmac.new(key, f"{what}\0{name}".encode(), hashlib.sha256).hexdigest()[:digits]


def _sample(path: Path, most: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    dicom = Dicom(path)
    if not dicom.has_pixels or dicom.coloured:
        return np.zeros(0, np.float32)
    levels = np.concatenate([found[~padding] for found, padding in dicom.frames()])
    levels = levels[np.isfinite(levels)]
    step = max(1, -(-len(levels) // most))
    return np.asarray(levels[::step], dtype=np.float32)


def _pixels(dicom: Dicom, window: Window | None) -> list[np.ndarray[Any, Any]]:
    """The frames as they are saved: 16 bits of grey, or 8 of each colour."""
    if dicom.coloured:
        return list(dicom.colours())
    used = window or Window(0.0, 1.0)
    return [used.applied(levels, padding, dicom.inverted) for levels, padding in dicom.frames()]
