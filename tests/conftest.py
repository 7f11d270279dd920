"""Toy problems that train in milliseconds, and the real data where FEDPROC_DATA says it is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedproc.cli import main
from fedproc.cli.commands import execute
from fedproc.data.images import Images, Split
from fedproc.experiment import Experiment
from fedproc.lanes import choose
from fedproc.runs.schema import content_checksum
from fedproc.simulation.drive import drive
from fedproc.simulation.preparation import Library
from fedproc.simulation.session import Session

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run in Python then; settled when Triton is first imported

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background, and so in processes begun here
    signal.signal(signal.SIGINT, signal.default_int_handler)


def toy_images(
    classes: int = 4, per_class: int = 40, absent: int | None = None, side: int = 16, channels: int = 1
) -> Images:
    """Noisy class patterns; class `absent` is in the test set alone."""
    rng = np.random.default_rng(7)
    patterns = rng.integers(0, 200, (classes, channels, side, side))

    def split(count: int, without: int | None) -> Split:
        labels = np.array([k for k in range(classes) if k != without for _ in range(count)])
        noise = rng.integers(0, 55, (len(labels), channels, side, side))
        return Split((patterns[labels] + noise).astype(np.uint8), labels)

    return Images("toy", split(per_class, absent), split(10, None), tuple(f"class-{k}" for k in range(classes)))


class ToyLibrary(Library):
    """Hands out one toy problem, whatever is asked for."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        self._toy = images

    def images(self, experiment: Experiment) -> Images:
        return self._toy


def toy_experiment(**given: object) -> Experiment:
    """Small and ragged: clients of 10 and more samples against batches of 16, so some are smaller than a batch."""
    base = {"clients": 5, "beta": 0.1, "rounds": 2, "epochs": 2, "batch_size": 16, "min_size": 3, "lr": 0.05}
    return Experiment(**{**base, "device": "cpu", **given})


def toy_session(images: Images | None = None, **given: object) -> Session:
    return Session(toy_experiment(**given), ToyLibrary(images or toy_images()))


Train = Callable[..., Session]


@pytest.fixture
def train() -> Train:
    """Train a toy session to its end in memory with the executor and lanes asked for."""

    def work(images: Images | None = None, executor: str = "serial", lanes: int = 1, **given: object) -> Session:
        session = toy_session(images, **given)
        made = choose(executor, lanes, 1, [session.setting], session.cohort)
        try:
            drive([session], made)
        finally:
            made.close()
        return session

    return work


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the official CIFAR files."""
    where = os.environ.get("FEDPROC_DATA")
    if not where:
        pytest.skip("FEDPROC_DATA is not set: no real CIFAR here")
    return Path(where)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small grey images in three classes."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name, level in (("dark", 40), ("bright", 180), ("middle", 100)):
        (folder / name).mkdir()
        for i in range(60):
            Image.fromarray((level + rng.integers(0, 60, (16, 16))).astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def change_config(path: Path, without: Collection[str] = (), **changed: Any) -> None:
    """Another config.json, with the checksum that fits."""
    found = {**json.loads(path.read_text()), **changed}
    whole = {name: value for name, value in found.items() if name not in without}
    path.write_text(json.dumps({**whole, "checksum": content_checksum(whole)}))


def contents(folder: Path) -> dict[str, Any]:
    """Everything in a run folder but times and the environment."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or name == "environment.json":
            continue
        if name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{k: v for k, v in line.items() if k not in ("seconds", "chain")} for line in lines]
        elif name == "result.json":
            result = json.loads(path.read_text())
            timed = ("seconds", "samples_per_second")
            found[name] = {k: v for k, v in result.items() if k not in timed and not k.endswith("checksum")}
        elif path.name == "checkpoint.json":
            index = json.loads(path.read_text())
            del index["checksum"], index["values"]["lines"]  # which hold what seconds were measured
            found[name] = index
        else:
            found[name] = path.read_bytes()
    return found


def work(folder: Path, images: Images | None = None, fresh: bool = False, **given: Any) -> Session:
    """Run a toy experiment in a folder, or continue it."""
    session = Session(
        toy_experiment(**{"rounds": 4, "checkpoint_every": 2, **given}), ToyLibrary(images or toy_images())
    )
    session.claim(folder, fresh)
    session.open(fresh)
    executor = choose("serial", 1, 1, [session.setting], 5)
    try:
        if session.result is None:
            drive([session], executor)
    finally:
        executor.close()
        session.close()
    return session


def fedproc(*words: object) -> subprocess.CompletedProcess[str]:
    """The command line, as a process of its own."""
    return subprocess.run([sys.executable, "-m", "fedproc", *map(str, words)], capture_output=True, text=True)


def typed(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The command line in this process: exit code, output and errors."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    code = main(words.split())
    for number, handler in before.items():
        signal.signal(number, handler)
    return (code, *capsys.readouterr())


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A person's own images: three sizes, two formats, two classes that differ in colour."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    for name, colour in (("red", (200, 40, 40)), ("blue", (40, 40, 200))):
        (folder / name).mkdir()
        for i in range(45):
            size = ((40, 40), (64, 48), (33, 50))[i % 3]
            pixels = np.clip(np.array(colour) + rng.normal(0, 30, (size[1], size[0], 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.{'png' if i % 2 else 'jpg'}")
    return folder


SMALL = ["--data", "fashion-mini", "--clients", "4", "--rounds", "2", "--epochs", "1", "--batch-size", "128"]


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "cmp"
    words = ["compare", "--methods", "fedavg", "fedproc", "--seeds", "0", "1", *SMALL, "--device", "cpu"]
    assert execute([*words, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def exhibits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exhibits")
    for name in ("tsne", "rounds", "epochs"):
        assert execute(["paper", name, "--scale", "tiny", "--out", str(out), "--device", "cpu"]) == 0
    return out


@pytest.fixture(scope="session")
def page(compared: Path, exhibits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page")
    folders = [str(compared), *(str(exhibits / "tiny" / name) for name in ("tsne", "rounds", "epochs"))]
    assert execute(["report", *folders, "--out", str(out)]) == 0
    return out / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; FEDPROC_BROWSER=required makes a missing one a failure."""
    chromium = os.environ.get("FEDPROC_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        from playwright.sync_api import sync_playwright

        if chromium is None:
            raise FileNotFoundError("no chromium here; set FEDPROC_CHROMIUM to where it is")
    except (ImportError, FileNotFoundError) as error:
        if os.environ.get("FEDPROC_BROWSER") == "required":
            raise
        pytest.skip(str(error))
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()
