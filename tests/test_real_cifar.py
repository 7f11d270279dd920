"""Both methods on the real CIFAR-10 files, as a person would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["fedavg", "fedproc"])
def test_three_rounds_on_cifar10(method: str, real_data: Path, tmp_path: Path) -> None:
    flags = f"--method {method} --data cifar10 --data-dir {real_data} --rounds 3 --epochs 1 --out {tmp_path / 'run'}"
    subprocess.run([sys.executable, "-m", "fedproc", "run", *flags.split()], check=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    # ten clients of 3,688 to 8,078 samples train on whole batches of 64
    assert all(49_000 < line["samples"] <= 50_000 for line in lines)
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert lines[-1]["prototype_accuracy"] > 0.15
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["network"], config["augment"], config["lr"]) == ("simple-cnn", "crop-flip", 0.01)
