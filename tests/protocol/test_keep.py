"""The model that a run keeps: the last, or the best by validation, and when it ends early."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Train, contents, typed

from fedproc.data import load
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.runs.model import load_model
from fedproc.simulation.drive import run
from fedproc.simulation.watching import Watched

GIVEN: dict[str, Any] = {"method": "fedavg", "val_fraction": 0.3, "rounds": 8, "epochs": 1, "lr": 0.4, "clients": 3}


def test_the_best_round_is_kept_and_meets_the_test_images_once(train: Train) -> None:
    plain = train(**GIVEN)
    kept = train(**GIVEN, keep="best")
    accuracies = [record["val_accuracy"] for record in kept.records]
    assert accuracies == [record["val_accuracy"] for record in plain.records]
    best = max(range(8), key=lambda t: (accuracies[t], -t))
    assert [("kept" in record, "test_accuracy" in record) for record in kept.records[:-1]] == [(False, False)] * 7
    last = kept.records[-1]["kept"]
    assert last["round"] == best + 1 and last["val_accuracy"] == accuracies[best]
    assert kept.result is not None and kept.result["test_accuracy"] == last["test_accuracy"]
    shorter = train(**{**GIVEN, "rounds": best + 1})
    assert kept.state.kept is not None
    assert torch.equal(kept.state.kept.weights.params, shorter.state.weights.params)
    assert "kept" not in plain.records[-1] and plain.result is not None and "test_accuracy" not in plain.result


def test_patience_ends_a_run_early(train: Train) -> None:
    session = train(**{**GIVEN, "lr": 1e-9}, patience=3)  # nothing changes, so round 1 stays the best
    assert len(session.records) == 4 and session.result is not None and session.result["rounds"] == 4
    assert "kept" not in session.records[-1]  # the last model is the run's, and is not tested
    best = train(**{**GIVEN, "lr": 1e-9}, patience=3, keep="best")
    assert len(best.records) == 4 and best.records[-1]["kept"]["round"] == 1


@pytest.mark.parametrize(("every", "patience", "last"), [(5, 7, 15), (2, 1, 4), (3, 3, 6)])
def test_patience_ends_at_an_evaluation(train: Train, every: int, patience: int, last: int) -> None:
    """Nothing changes, so the first evaluation stays the best; the kept model is tested where the run ends."""
    given = {**GIVEN, "lr": 1e-9, "rounds": 20, "eval_every": every}
    session = train(**given, patience=patience, keep="best")
    assert len(session.records) == last and session.records[-1]["kept"]["round"] == every
    assert session.result is not None and session.result["kept_round"] == every


class Stop:
    """Interrupts after so many rounds."""

    def __init__(self, after: int) -> None:
        self._after = after

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None: ...

    def update(self, run: Watched) -> None:
        if run.round == self._after:
            raise KeyboardInterrupt

    def end(self) -> None: ...


@pytest.mark.parametrize("after", [2, 5])
def test_an_interrupted_run_keeps_what_it_would_have_kept(pictures: Path, tmp_path: Path, after: int) -> None:
    own = {"data": str(pictures), "rounds": 6, "epochs": 1, "clients": 3, "val_fraction": 0.3, "lr": 0.3}
    experiment = Experiment(method="fedavg", keep="best", patience=4, predictions="held-out", **own)
    whole = run(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(experiment, tmp_path / "cut", watcher=Stop(after))
    assert not (tmp_path / "cut" / "result.json").exists()
    run(experiment, tmp_path / "cut")
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    model, kept = load_model(tmp_path / "cut"), whole.metrics[-1]["kept"]
    images = load(str(pictures), None, None, 0.2, 0)
    found = [prediction.label for prediction in model.predict(images.test.images)]
    right = sum(label == images.class_names[k] for label, k in zip(found, images.test.labels, strict=True))
    assert right / len(found) == pytest.approx(kept["test_accuracy"])
    with (tmp_path / "cut" / "test-predictions.csv").open(newline="") as file:
        assert [row["predicted"] for row in csv.DictReader(file)] == found


def test_what_cannot_be_kept_is_refused(train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="keep best: goes by validation; needs val_fraction"):
        Experiment(keep="best")
    with pytest.raises(InputError, match="patience 2: goes by validation"):
        Experiment(patience=2)
    with pytest.raises(InputError, match="not together with ccvr"):
        Experiment(keep="best", val_fraction=0.1, ccvr="lda")
    with pytest.raises(InputError, match="keep best: fedper has models of each client's own"):
        train(method="fedper", keep="best", val_fraction=0.3)
    words = f"run --method fedavg --rounds 1 --epochs 1 --val-fraction 0.1 --keep best --out {tmp_path / 'run'}"
    assert typed(words, capsys)[0] == 0
    code, _, err = typed(words.replace("--rounds 1", "--rounds 2"), capsys)
    assert code == 2 and "its model was chosen by validation and has met the test images" in err


def test_training_starts_from_a_saved_model(train: Train, tmp_path: Path) -> None:
    first = run(Experiment(method="fedavg", rounds=1, epochs=1), tmp_path / "first")
    given: dict[str, Any] = {"method": "fedavg", "rounds": 1, "epochs": 1, "lr": 1e-12, "weight_decay": 0}
    again = run(Experiment(start_from=tmp_path / "first", **given), tmp_path / "again")
    assert again.result["final_accuracy"] == pytest.approx(first.result["final_accuracy"], abs=2e-3)
    run(Experiment(start_from=tmp_path / "first" / "model.safetensors", **given), tmp_path / "again")  # the same file
    other = run(Experiment(method="fedavg", rounds=1, epochs=1, model_seed=5), tmp_path / "other")
    assert other.path is not None
    with pytest.raises(InputError, match="start_from"):
        run(Experiment(start_from=other.path, **given), tmp_path / "again")
    with pytest.raises(InputError, match="is not part of this network; expected the weights of the same network"):
        run(Experiment(start_from=other.path, network="resnet18", width=4, **given))
