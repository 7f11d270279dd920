"""Trackers: one interface, and what MLflow and Weights & Biases have on record, where they are installed."""

from __future__ import annotations

import json
import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import fedproc

from fedproc import Experiment, InputError, compare, run
from fedproc.simulation import drive
from fedproc.simulation.drive import Run
from fedproc.simulation.watching import Record
from fedproc.watchers.tracker import Tracker, config_of
from fedproc.watchers.trackers import TRACKERS, finish, trackers

TOY: dict[str, Any] = {"clients": 3, "epochs": 1, "batch_size": 16, "device": "cpu"}


class Listing(Tracker):
    """Keeps what it is told."""

    name = "listing"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.rounds: list[int] = []
        self.ends: list[str] = []

    def log(self, path: Path, label: str, records: Sequence[Record]) -> None:
        assert config_of(path)["fedprox.mu"] == 0.5
        self.rounds += [record["round"] for record in records]

    def finished(self, run: Run, path: Path) -> None:
        self.ends.append(run.result["status"])


def trained(pictures: Path, out: Path, rounds: int, tracker: Tracker | None) -> Run:
    experiment = Experiment(
        preset="paper", method="fedprox", data=str(pictures), rounds=rounds, fedprox={"mu": 0.5}, **TOY
    )
    done = drive.run(experiment, out, watcher=tracker)
    finish([tracker] if tracker else [], [done])
    return done


def test_every_round_is_written_once_also_of_continued_and_of_finished_runs(pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    seen = []
    for rounds, logged in ((1, True), (2, True), (2, True), (3, False), (4, True)):
        tracker = Listing(out) if logged else None
        trained(pictures, out, rounds, tracker)
        seen.append((tracker.rounds, tracker.ends) if tracker else None)
    assert seen == [([1], ["finished"]), ([2], ["finished"]), ([], []), None, ([3, 4], ["finished"])]


class Broken(Listing):
    name = "broken"

    def log(self, path: Path, label: str, records: Sequence[Record]) -> None:
        raise OSError("the store is locked")


def test_a_tracker_that_fails_ends_no_run(pictures: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        done = trained(pictures, tmp_path / "run", 2, Broken(tmp_path / "run"))
    assert done.result["status"] == "finished"
    (said,) = (str(each.message) for each in caught if "locked" in str(each.message))
    assert said == "--log broken: OSError: the store is locked; the runs go on without it"
    later = Listing(tmp_path / "run")
    later.name = "broken"  # type: ignore[misc]
    trained(pictures, tmp_path / "run", 2, later)
    assert later.rounds == [1, 2]  # what is missing is written when it works again


def test_trackers_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(TRACKERS) == ["tensorboard", "mlflow", "wandb"]
    with pytest.raises(InputError, match=r"log tensorbord: expected tensorboard, .*; did you mean tensorboard\?"):
        trackers("tensorbord", tmp_path)
    with pytest.raises(InputError, match="log tensorboard: needs out, the folder to write to"):
        run(Experiment(**TOY), log="tensorboard")
    for name, package in (("mlflow", "mlflow"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InputError, match=rf"package {package} is not installed; pip install 'fedproc\[{name}\]'"):
            trackers([name], tmp_path)


@pytest.mark.slow
def test_mlflow_has_what_the_run_folder_has(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    out = tmp_path / "cmp"
    how: dict[str, Any] = {
        "data": str(pictures),
        **TOY,
        "lr_schedule": "constant",
        "progress": False,
        "log": ["mlflow"],
    }
    compare(["fedavg", "fedprox"], [0], out, rounds=2, **how)
    done = compare(["fedavg", "fedprox"], [0], out, rounds=3, **how)
    client = MlflowClient(f"sqlite:///{out}/mlflow/mlflow.db")
    (experiment,) = (each for each in client.search_experiments() if each.name == "cmp")
    runs = {each.info.run_name: each for each in client.search_runs([experiment.experiment_id])}
    assert sorted(runs) == ["fedavg/seed-0", "fedprox/seed-0"]
    for row in done.rows:
        found = runs[f"{row.label}/seed-0"]
        history = client.get_metric_history(found.info.run_id, "accuracy/test_accuracy")
        assert {m.step: m.value for m in history} == {r["round"]: r["test_accuracy"] for r in row.runs[0].metrics}
        assert len(history) == 3 and found.info.status == "FINISHED"
        assert found.data.metrics["result/final_accuracy"] == row.runs[0].result["final_accuracy"]
    assert runs["fedprox/seed-0"].data.params["fedprox.mu"] == "0.01"
    compare(["fedavg"], [0], out, rounds=3, fresh=True, **how)  # started over: the old one is gone
    assert len(client.search_runs([experiment.experiment_id])) == 2


def logged(content: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's format, after wandb's 7 bytes."""
    block, at, begun = 1 << 15, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        begun += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            yield begun
            begun = b""


@pytest.mark.slow
def test_wandb_is_offline_in_the_run_folder(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2 as messages

    monkeypatch.delenv("WANDB_MODE", raising=False)
    out = tmp_path / "run"
    for rounds in (2, 3):
        words = ["run", "--method", "fedavg", "--data", pictures, "--clients", 3, "--epochs", 1, "--device", "cpu"]
        words += ["--lr-schedule", "constant"]  # so that rounds can be added
        done = fedproc(*words, "--rounds", rounds, "--out", out, "--log", "wandb")  # whose end its files wait for
        assert done.returncode == 0, done.stderr
    files = sorted((out / "wandb").glob("offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    assert len(files) == 2  # one for each command
    seen: dict[int, float] = {}
    for path in files:
        for data in logged(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(data)
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            if "accuracy/test_accuracy" in items:
                seen[record.history.step.num] = json.loads(items["accuracy/test_accuracy"])
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    assert seen == {line["round"]: line["test_accuracy"] for line in lines}
