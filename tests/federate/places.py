"""Toy sites: small images on disk, the same images for the simulator, and a wire that stays in this process."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedproc.experiment import Experiment
from fedproc.federate.driver import Driver
from fedproc.federate.segment import Options, Outcome
from fedproc.federate.trainer import Trainer
from fedproc.lanes import cores
from fedproc.protocol.codec import Message

CLASSES = ("bird", "cat", "dog", "eel")
NAMES = ("a", "b", "c")
Answer = Callable[[Message], Message]


def write_site(folder: Path, place: int, classes: Sequence[str] = CLASSES, side: int = 16) -> Path:
    """A CSV of one site's images: noisy patterns of its classes, ragged, with its own test images."""
    rng = np.random.default_rng(place)
    patterns = np.random.default_rng(99).integers(0, 200, (len(CLASSES) + 4, side, side))
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, name in enumerate(classes):
        known = CLASSES.index(name) if name in CLASSES else len(CLASSES)
        for part, count in (("train", 9 + 4 * ((number + place) % 3)), ("test", 4 + place)):
            for i in range(count):
                file = f"{part}-{name}-{i}.png"
                pixels = (patterns[known] + rng.integers(0, 55, (side, side))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / file)
                rows.append((file, name, part))
    path = folder / "images.csv"
    with path.open("w", newline="") as file_:
        writer = csv.writer(file_)
        writer.writerow(("path", "label", "split"))
        writer.writerows(rows)
    return path


def write_all(sites: Mapping[str, Path], path: Path) -> Path:
    """The same images as one CSV with a column of sites, for the simulator."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "site", "split"))
        for site, manifest in sites.items():
            with manifest.open(newline="") as rows:
                for row in csv.DictReader(rows):
                    writer.writerow((manifest.parent / row["path"], row["label"], site, row["split"]))
    return path


def write_server_test(images: Path, folder: Path) -> Path:
    """One site's test images as class folders, for the server."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for path in sorted(images.glob(f"test-{name}-*.png")):
            Image.open(path).save(folder / name / path.name)
    return folder


BESIDE_NOTHING = {"alone": False, "fine_tune": 0}


def experiment(**given: Any) -> Experiment:
    base = {
        "data": "federation", "preset": "paper", "rounds": 3, "epochs": 2, "batch_size": 8, "lr": 0.05,
        "dtype": "float64", "normalize": "measured", "smallest_class": 5, "checkpoint_every": 1,
    }  # fmt: skip
    return Experiment(**{**base, **given})


def simulated(manifest: Path, **given: Any) -> Experiment:
    """The experiment of the simulator that a federation must agree with: a lane, and so a thread, on each core."""
    natural = {"data": str(manifest), "partition": "natural", "min_size": 1, "device": "cpu", "lanes": cores()}
    return experiment(**{**given, **natural})


class LocalWire:
    """Sites as functions; a site in `silent` does not answer."""

    def __init__(self, sites: Mapping[str, Answer]) -> None:
        self.answers = dict(sites)
        self.silent: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.over = False

    def sites(self) -> list[str]:
        return list(self.answers)

    def restarted(self, site: str) -> bool:
        return False

    def ended(self) -> bool:
        return self.over

    def ask(self, messages: Mapping[str, Message], seconds: int, take: Callable[[str, Message | str], None]) -> None:
        for site in reversed(list(messages)):  # the last asked is the first to answer
            self.asked.append((site, json.loads(messages[site].head)["what"]))
            if site in self.silent:
                take(site, f"no answer within {seconds} s")
            else:
                take(site, self.answers[site](messages[site]))


class Place:
    """A federation in one folder and one process."""

    def __init__(self, folder: Path, names: Sequence[str] = NAMES, device: str = "cpu") -> None:
        self.folder, self.names, self.device = folder, names, device
        self.data = {name: write_site(folder / "images" / name, place) for place, name in enumerate(names)}
        self.said: list[str] = []

    def kit(self, name: str) -> Path:
        path = self.folder / "kits" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def trainer(self, name: str, **given: Any) -> Trainer:
        return Trainer(self.kit(name), name, self.data[name], self.device, **given, threads=1)

    def wire(self, **changed: Answer) -> LocalWire:
        return LocalWire({name: changed.get(name) or self.trainer(name).answer for name in self.names})

    def play(
        self, wire: LocalWire, run: str = "run", members: Sequence[str] | None = None, options: Any = None, **given: Any
    ) -> tuple[Outcome, Driver]:
        """One segment."""
        driver = Driver(
            self.folder / "runs", run, experiment(**given), Options(**{**BESIDE_NOTHING, **(options or {})}),
            members or self.names, wire, self.said.append,
        )  # fmt: skip
        return driver.play(), driver

    def audit(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.kit(name) / "audit.jsonl").read_text().splitlines()]
