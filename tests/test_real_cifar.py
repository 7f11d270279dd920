"""Every method on the real CIFAR-10 files, as a person would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedproc.methods import METHODS

pytestmark = pytest.mark.slow


def run(real_data: Path, out: Path, flags: str) -> list[dict[str, Any]]:
    words = f"run --data cifar10 --data-dir {real_data} --out {out} {flags}"
    subprocess.run([sys.executable, "-m", "fedproc", *words.split()], check=True)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", sorted(METHODS))
def test_three_rounds_on_cifar10(method: str, real_data: Path, tmp_path: Path) -> None:
    few = {"solo": "--solo.epochs 3", "fedrep": "--fedrep.head-epochs 1", "fine-tuning": "--fine-tuning.tune-epochs 1"}
    few["fedtgp"] = "--fedtgp.server-epochs 10"
    few["mime-lite"] = "--lr 0.1"  # its steps are those of SGD without momentum
    lines = run(real_data, tmp_path / "run", f"--method {method} --rounds 3 --epochs 1 {few.get(method, '')}")
    assert [line["round"] for line in lines] == [1, 2, 3, 4][: 4 if method == "fine-tuning" else 3]
    # ten clients of 3,688 to 8,078 samples train on whole batches of 64
    assert all(49_000 < line["samples"] <= 50_000 for line in lines)
    assert lines[-1]["train_cross_entropy"] < lines[0]["train_cross_entropy"]
    shown = lines if method == "fpl" else lines[-1:]  # fpl is not there yet: 19 % in round 2, 11 % in 3, 34 % in 10
    assert max(line["prototype_accuracy"] for line in shown) > 0.15
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["network"], config["augment"]) == ("simple-cnn", "crop-flip")
    assert config["lr"] == (0.1 if method == "mime-lite" else 0.01)
    if METHODS[method].family == "personal" and method != "fedbn":  # which keeps nothing of a network without a norm
        assert lines[-1]["own_accuracy"] > 0.25


def test_scaffold_does_not_diverge_with_a_hundred_clients_ten_a_round(real_data: Path, tmp_path: Path) -> None:
    flags = "--method scaffold --clients 100 --sample 0.1 --rounds 20 --epochs 10 --eval-every 5"
    lines = run(real_data, tmp_path / "run", flags)
    assert len(lines) == 20 and not any("refused" in line for line in lines)
    assert lines[-1]["test_accuracy"] > 0.2  # the public script that starts c at random reports 10 %
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
