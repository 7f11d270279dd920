"""Own accuracy in a comparison: of clients' own models, and of a global model by the same rule; and CCVR beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedproc import compare
from fedproc.comparison.compare import Comparison
from fedproc.comparison.own_accuracy import of_global_model
from fedproc.methods.fine_tuning import FineTuning
from fedproc.methods.method import Local, Tensors
from fedproc.methods.own_models import OWN
from fedproc.report.contents import write_report
from fedproc.report.summary import OF_OWN, accuracies, differences

GIVEN = {"clients": 3, "min_size": 5, "rounds": 2, "epochs": 1, "batch_size": 16, "device": "cpu"}


class Unchanged(FineTuning):
    """Fine-tuning of which clients keep what they began with: each one's own model is the global one."""

    name = "unchanged"

    def next_client_state(self, local: Local) -> Tensors:
        above = super().next_client_state(local)
        began = {f"own_{name}": tensor for name, tensor in local.start.tensors().items()}
        return {**above, **began} if local.phase.name == OWN else above


@dataclass
class Kept:
    path: Path | None
    metrics: list[dict[str, Any]] = field(default_factory=lambda: [{"round": 1, "class_accuracy": [0.8, 0.4]}])


def kept(folder: Path, counts: list[list[int]], executor: str = "serial", **config: Any) -> Kept:
    environment = {"device": "cpu", "executor": executor, "lanes": 1, "threads": 1}
    files = {"config": {"sample": 1.0, **config}, "environment": environment}
    for name, found in {**files, "partition": {"class_names": ["a", "b"], "counts": counts}}.items():
        (folder / f"{name}.json").write_text(json.dumps(found))
    return Kept(folder)


COUNTS = [[3, 1], [0, 4], [0, 0]]  # the third has nothing, and no part in the mean


def test_a_global_models_own_accuracy_by_hand(tmp_path: Path) -> None:
    # (3/4 0.8 + 1/4 0.4 + 0.4) / 2; where one image of a class is not told of, (0.8 + 0.4) / 2
    assert of_global_model(kept(tmp_path, COUNTS)) == pytest.approx(0.55)
    assert of_global_model(kept(tmp_path, COUNTS, smallest_class=2)) == pytest.approx(0.6)
    validated = Kept(tmp_path, [{"round": 1, "val_class_accuracy": [1.0, None]}, {"round": 2}])
    assert of_global_model(validated) == pytest.approx(0.5)  # 1 and 0: nothing is held out of the second class


def test_where_it_cannot_be_told(tmp_path: Path) -> None:
    assert of_global_model(kept(tmp_path, COUNTS, sample=0.5)) is None
    assert of_global_model(kept(tmp_path, [[3, 5]])) is None
    assert of_global_model(kept(tmp_path, COUNTS, "federation")) is None
    there = kept(tmp_path, COUNTS)
    assert of_global_model(Kept(None)) is None and of_global_model(Kept(tmp_path, [])) is None
    refused = {**there.metrics[0], "refused": {"1": "not finite"}}
    assert of_global_model(Kept(tmp_path, [refused])) is None and of_global_model(there) is not None


@pytest.fixture(scope="module")
def done(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    variants = {"unchanged": {"method": Unchanged, "unchanged": {"tune_epochs": 1}}}
    out = tmp_path_factory.mktemp("own") / "cmp"
    return compare(["fedavg"], [0, 1], out, variants=variants, data=str(pictures), ccvr="lda", **GIVEN)


def test_own_models_that_are_the_global_one_have_its_own_accuracy(done: Comparison) -> None:
    average, unchanged = done.rows
    assert "final_own_accuracy" not in average.runs[0].result
    assert average.by_seed("final_own_accuracy") == unchanged.by_seed("final_own_accuracy") != {}
    assert average.by_seed("final_own_accuracy") != average.by_seed("final_accuracy")
    assert done.paired("final_own_accuracy")["unchanged"].values == (0.0, 0.0)


def test_where_own_and_ccvr_accuracies_are_shown(done: Comparison, tmp_path: Path) -> None:
    shown = accuracies(done)
    assert shown.heads[5:-1] == ["nearest prototype", "own", "CCVR, lda"]
    assert shown.note == f"{OF_OWN}; without such models, of the global one: fedavg."
    against = {row[1].text: row[2].text for row in differences(done).rows}
    assert list(against)[4:] == ["own", "CCVR, lda"] and against["own"] == "+0.00"
    assert done.path is not None
    rows = json.loads((done.path / "comparison.json").read_text())["rows"]
    assert {label: row["own_accuracy_of"] for label, row in rows.items()} == {
        "fedavg": "global model", "unchanged": "clients' own models",
    }  # fmt: skip
    for name in ("final_own_accuracy", "final_lda_accuracy"):
        assert rows["unchanged"]["difference"][name]["difference"] == 0.0
        assert rows["fedavg"][name]["mean"] == (done.rows[0].spread(name) or [None])[0]
    assert "final_ccvr_accuracy" not in rows["fedavg"]
    page = write_report([done.path], tmp_path).read_text(encoding="utf-8")
    assert "of the global one: fedavg." in page and ">CCVR, lda<" in page


def test_where_no_row_has_them_nothing_is_said_of_them(done: Comparison) -> None:
    alone = Comparison([row for row in done.rows if row.label == "fedavg"], None, "fedavg")
    assert "own" not in accuracies(alone).heads and accuracies(alone).note == ""
