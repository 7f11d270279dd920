"""What TensorBoard would show is what the run folder says, also of a run that was stopped and continued."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedproc import InputError
from fedproc.cli.commands import execute
from fedproc.watchers.tensorboard import TensorBoard
from fedproc.watchers.tracker import scalars

WORDS = ["--data", "fashion-mini", "--clients", "3", "--epochs", "1", "--batch-size", "256", "--device", "cpu"]


def logged(folder: Path, tag: str) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(tag)}


def accuracies(folder: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {record["round"]: record["test_accuracy"] for record in records}


def test_curves_and_embeddings_of_a_run_that_is_continued(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["run", "--method", "fedavg", *WORDS, "--out", str(out), "--log", "tensorboard"]
    assert execute([*words, "--rounds", "2"]) == 0
    assert execute([*words, "--rounds", "3"]) == 0
    assert logged(out, "accuracy/test_accuracy") == pytest.approx(accuracies(out))
    assert set(logged(out, "seconds/train")) == {1, 2, 3}
    *_, labels = (out / "tensorboard").rglob("metadata.tsv")
    assert len(labels.read_text().splitlines()) == 500
    *_, vectors = (out / "tensorboard").rglob("tensors.tsv")
    assert len(vectors.read_text().splitlines()[0].split("\t")) == 256
    assert execute([*words[:-2], "--rounds", "4"]) == 0  # without the log
    assert execute([*words, "--rounds", "5"]) == 0
    assert logged(out, "accuracy/test_accuracy") == pytest.approx(accuracies(out))
    assert (out / "tensorboard" / "round-embedded").read_text() == "5\n"
    assert execute([*words, "--rounds", "3", "--fresh"]) == 0
    assert logged(out, "accuracy/test_accuracy") == pytest.approx(accuracies(out))


def test_a_finished_run_is_logged_afterwards(tmp_path: Path) -> None:
    words = ["compare", "--methods", "fedavg", "--seeds", "0", "--rounds", "1", *WORDS, "--out", str(tmp_path / "cmp")]
    assert execute(words) == 0
    assert execute([*words, "--log", "tensorboard"]) == 0
    folder = tmp_path / "cmp" / "fedavg" / "seed-0"
    assert logged(folder, "accuracy/test_accuracy") == pytest.approx(accuracies(folder))


def test_names_are_in_groups() -> None:
    record = {"round": 3, "test_accuracy": 0.5, "train_loss": 1.0, "alpha": 0.1, "class_accuracy": [1.0]}
    found = scalars({**record, "seconds": {"train": 2.0}})
    assert found == {
        "seconds/train": 2.0,
        "accuracy/test_accuracy": 0.5,
        "loss/train_loss": 1.0,
        "run/alpha": 0.1,
    }


def test_without_the_package_the_flag_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"not installed; pip install 'fedproc\[tensorboard\]'"):
        TensorBoard(tmp_path)
