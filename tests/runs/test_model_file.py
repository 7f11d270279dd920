"""Model files that lie: each is refused in a sentence, and before memory is taken for what it claims."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import work
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedproc import InputError
from fedproc.runs.model import load_model
from fedproc.runs.model_file import checksum

Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    work(folder / "run", rounds=1, method="fedproc")
    return folder / "run" / "model.safetensors"


def changed(model: Path, target: Path, change: Change, signed: bool = True) -> Path:
    """A copy with another description or other tensors; `signed` ones have the right checksum for it."""
    with safe_open(model, "pt") as file:
        about = json.loads(file.metadata()["fedproc"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(about, tensors)
    about.pop("checksum", None)
    if signed:
        about["checksum"] = checksum(tensors, about)
    save_file(tensors, target, metadata={"fedproc": json.dumps(about)})
    return target


def test_every_flipped_bit_of_the_tensors_is_noticed(model: Path, tmp_path: Path) -> None:
    content = bytearray(model.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    load_model(model)
    for at in np.random.default_rng(0).integers(start, len(content), 20).tolist():
        content[at] ^= 4
        (tmp_path / "m.safetensors").write_bytes(content)
        with pytest.raises(InputError, match="its checksum is wrong"):
            load_model(tmp_path / "m.safetensors")
        content[at] ^= 4


def test_a_file_without_a_checksum_is_read_as_before(model: Path, tmp_path: Path) -> None:
    old = changed(model, tmp_path / "m.safetensors", lambda about, tensors: None, signed=False)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 16, 16)).astype(np.uint8)
    assert load_model(old).predict(pixels) == load_model(model).predict(pixels)


def larger(tensors: dict[str, Tensor], name: str, value: float) -> None:
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, t: a.update(class_names=["x"] * 4), "each name once"),
        (lambda a, t: a.update(class_names=["x"]), "class_names: 1 names, but classifier.weight is"),
        (lambda a, t: a.update(class_names=[1, 2, 3, 4]), "class_names.0 1: expected a word"),
        (lambda a, t: a.update(class_names=[]), "class_names"),
        (lambda a, t: a.update(mean=[0.1, 0.2]), "mean"),
        (lambda a, t: a.update(mean="x"), "mean x: expected a list"),
        (lambda a, t: a.update(mean=[float("nan")]), "mean"),
        (lambda a, t: a.update(std=[0.0]), "std"),
        (lambda a, t: a.update(std=[-1.0]), "std"),
        (lambda a, t: a.update(std=[1e-320]), "expected a finite number above 0 in single precision"),
        (lambda a, t: a.update(std=[1e-50]), "expected a finite number above 0 in single precision"),
        (lambda a, t: a.update(std=[1e300]), "expected a finite number above 0 in single precision"),
        (lambda a, t: a.update(mean=[1e308]), "mean 1e+308: expected a finite number in single precision"),
        (lambda a, t: a.update(mean=[-1e39]), "mean -1e+39: expected a finite number in single precision"),
        (lambda a, t: a.update(mean=[3e38]), "normalised pixels are not finite"),
        (lambda a, t: a.update(std=[1e-41]), "normalised pixels are not finite"),
        (lambda a, t: a.update(mean=[1e20], std=[1e-20]), "normalised pixels are not finite"),
        (lambda a, t: a.update(network="resnet50", width=1200), "its description needs"),
        (lambda a, t: a.update(width=10**9), "width"),
        (lambda a, t: a.update(image_size=10**6), "image_size"),
        (lambda a, t: a.update(image_size=32), "its description needs"),
        (lambda a, t: a.update(channels=3), "mean"),
        (lambda a, t: a.update(network="no-such"), "no-such: expected one of"),
        (lambda a, t: a.update(dtype="float16"), "dtype float16"),
        (lambda a, t: a.update(dtype="float64"), "its description needs"),
        (lambda a, t: a.update(schema=9), "schema 9"),
        (lambda a, t: a.pop("norm"), "norm is missing"),
        (lambda a, t: t.update(prototypes=torch.zeros(4, 7)), "prototypes is float32"),
        (lambda a, t: t.update(prototypes=torch.zeros(4, 256, dtype=torch.float64)), "prototypes is float64"),
        (lambda a, t: t.pop("known"), "known is nothing"),
        (lambda a, t: larger(t, "prototypes", float("nan")), "prototypes is not finite"),
        (lambda a, t: larger(t, "classifier.bias", float("inf")), "classifier.bias is not finite"),
        (lambda a, t: t.update(extra=torch.zeros(1)), "extra is float32"),
    ],
)
def test_what_a_file_claims_is_checked(model: Path, tmp_path: Path, change: Change, words: str) -> None:
    with pytest.raises(InputError) as refused:
        load_model(changed(model, tmp_path / "m.safetensors", change))
    assert (words in str(refused.value) and "m.safetensors" in str(refused.value)) or "no-such" in str(refused.value)


@pytest.mark.parametrize("claim", ["wide", "many names", "deep"])
def test_a_claim_takes_no_memory(model: Path, tmp_path: Path, claim: str) -> None:
    def change(about: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        if claim == "wide":
            about.update(network="resnet50", width=1200)
        if claim == "many names":
            about["class_names"] = [f"{number}" for number in range(1_000_000)]

    path = changed(model, tmp_path / "m.safetensors", change)
    if claim == "deep":
        nested = json.dumps({"fedproc": "[" * 100_000}).encode()
        head = b'{"__metadata__":' + nested + b"}"
        path.write_bytes(len(head).to_bytes(8, "little") + head)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    said = subprocess.run(
        [sys.executable, "-m", "fedproc", "predict", str(path), str(path)], capture_output=True, text=True
    )
    assert said.returncode == 2 and said.stderr.count("\n") == 1 and "m.safetensors" in said.stderr
    most = max(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, before)
    assert most < 2 << 20  # in KiB: torch alone takes a third of it
