"""fedproc from Python, as a notebook uses it: objects in, results out."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cells import cell
from matplotlib.figure import Figure

import fedproc
from fedproc import Comparison, Experiment, InputError, Run, Watched, Watcher, compare, load_model, open_run, run
from fedproc.runs.model_file import packed, read_about, read_tensors
from fedproc.whereabouts import place

METHOD = """
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Options
from pydantic import Field

class Settings(Options):
    factor: float = Field(0.5, gt=0, description="of the logits")

class Scaled(FedAvg):
    name = "scaled"
    summary = "FedAvg with scaled logits"
    options_type = Settings

    def logits(self, batch, local):
        return super().logits(batch, local) * self.options.factor
"""
ENCODER = """
from torch import nn

class Encoder(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, width, 3, stride=2), nn.ReLU(), nn.Flatten())

    def forward(self, images):
        return self.layers(images)
"""
TOY: dict[str, Any] = {"clients": 3, "rounds": 2, "epochs": 1, "batch_size": 4, "lr": 0.05, "device": "cpu"}


@pytest.fixture(scope="module")
def toy(pictures: Path) -> dict[str, Any]:
    return {**TOY, "data": str(pictures)}


@pytest.fixture(scope="module")
def own(toy: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    """A run of a cell's method and encoder, in a folder."""
    space = cell(METHOD + ENCODER)
    experiment = Experiment(method=space["Scaled"], network=space["Encoder"], **toy, **{"scaled.factor": 2})
    return run(experiment, tmp_path_factory.mktemp("own") / "run", progress=False), space


def test_options_by_table_and_by_their_flags_names() -> None:
    assert Experiment(fedproc={"tau": 0.2}) == Experiment(**{"fedproc.tau": 0.2}) != Experiment()
    assert Experiment(method="two-stage", **{"two-stage.split": 0.3}).options.split == 0.3  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"fedproc\.tau 1: given twice"):
        Experiment(fedproc={"tau": 2}, **{"fedproc.tau": 1})
    with pytest.raises(InputError, match=r"fedproc\.taus: no such option; did you mean tau\?"):
        Experiment(**{"fedproc.taus": 1})


def test_objects_are_recorded_by_name_and_source(own: tuple[Run, dict[str, Any]]) -> None:
    done, _ = own
    assert done.path is not None
    config = json.loads((done.path / "config.json").read_text())
    assert (config["method"], config["network"]) == ("scaled", "__main__:Encoder")
    assert config["scaled"] == {"factor": 2.0}
    assert len(config["plugin_sha256"]) == len(config["network_sha256"]) == 64


def test_changed_source_does_not_continue_a_run(own: tuple[Run, dict[str, Any]], toy: dict[str, Any]) -> None:
    done, _ = own
    more = {**toy, "rounds": 3, "scaled": {"factor": 2}}
    again = cell(METHOD + ENCODER)  # the cell run again, unchanged
    assert (
        run(Experiment(method=again["Scaled"], network=again["Encoder"], **toy, scaled={"factor": 2}), done.path)
        == done
    )
    changed = cell(METHOD.replace("* self.options.factor", "* 2"))
    with pytest.raises(InputError, match="method scaled: its source has changed since the run in"):
        run(Experiment(method=changed["Scaled"], network=again["Encoder"], **more), done.path)
    changed = cell(ENCODER.replace("ReLU", "Tanh"))
    with pytest.raises(InputError, match="network __main__:Encoder: its source has changed since the run in"):
        run(Experiment(method=again["Scaled"], network=changed["Encoder"], **more), done.path)


def test_an_error_of_an_own_method_ends_its_run_in_words(toy: dict[str, Any]) -> None:
    space = cell(METHOD.replace("* self.options.factor", "/ (1 // 0)"))
    done = run(Experiment(method=space["Scaled"], **toy), progress=False)
    assert done.status == "failed" and "hook `loss`" in done.result["reason"] and math.isnan(done.accuracy)
    assert "ZeroDivisionError" in str(done.table()) and "failed" in repr(done)


HELPER = """
def second(sizes):
    return sizes[9]
"""


def failing() -> Any:
    """A class whose helper raises in its third line."""
    return cell(HELPER + METHOD.replace("* self.options.factor", "+ second((1, 2))"))["Scaled"]


def test_an_error_of_an_own_helper_names_file_and_line(toy: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    done = run(Experiment(method=failing(), **toy))
    reason = done.result["reason"]
    assert re.search(r"hook `loss`: IndexError: tuple index out of range \([0-9a-f]{12}\.py, line 3\)$", reason)
    assert capfd.readouterr().err.count("IndexError") == 1


def test_a_cell_is_named_as_the_notebook_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        cell("1 // 0")
    named = SimpleNamespace(format_code_name=lambda file: ("Cell", "In[3]") if "/cells/" in file else None)
    shell = SimpleNamespace(compile=named)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    assert place(caught.value) == "Cell In[3], line 1"


def test_a_comparison_says_why_runs_failed(toy: dict[str, Any]) -> None:
    done = compare(["fedavg", failing()], [0, 1], progress=False, **toy)
    for text in (repr(done), str(done.table()), done._repr_html_()):
        assert text.count("IndexError: tuple index out of range") == 1 and "scaled, seeds 0, 1: failed in" in text
    with pytest.raises(InputError, match=r"(?s)in common with fedavg: runs ended early .*IndexError") as refused:
        done.differences()
    assert "more seeds" not in str(refused.value)
    assert [each.status for each in done.rows[1].ended] == ["failed"] * 2  # type: ignore[attr-defined]
    alone = compare([failing()], [0], progress=False, **toy)
    frame = alone.to_frame()
    assert list(frame.index.names) == ["label", "seed"] and "final_accuracy" in frame and not len(frame)


def test_a_frame_of_a_run_without_a_round(toy: dict[str, Any]) -> None:
    frame = run(Experiment(method=failing(), **toy), progress=False).to_frame()
    assert frame.index.name == "round" and list(frame) == ["train_loss", "test_accuracy", "test_loss"]
    assert not len(frame)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": int}, "expected a method's name, or a subclass of FedAvg"),
        ({"network": 3}, "expected a network's name, an nn.Module, or a class or function"),
        ({"network": dict}, "expected an nn.Module, got dict"),
    ],
)
def test_objects_that_are_none(given: dict[str, Any], words: str, toy: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=words):
        run(Experiment(**{**toy, **given}), progress=False)


def test_an_own_method_needs_a_name_of_its_own() -> None:
    space = cell("from fedproc.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    pass\n")
    with pytest.raises(InputError, match="method Mine: it has no `name` of its own"):
        Experiment(method=space["Mine"])
    space = cell("from fedproc.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'moon'\n")
    with pytest.raises(InputError, match="its name moon is the name of one of ours; choose another"):
        Experiment(method=space["Mine"])


def test_the_model_is_a_plain_module(own: tuple[Run, dict[str, Any]], toy: dict[str, Any]) -> None:
    done, space = own
    assert done.path is not None
    model = done.model()
    pixels = torch.randint(0, 256, (5, 1, 16, 16), dtype=torch.uint8)
    images = (pixels / 255 - torch.tensor(model.mean).view(-1, 1, 1)) / torch.tensor(model.std).view(-1, 1, 1)
    torch.testing.assert_close(model.preprocess(pixels), images)
    assert model(images).shape == (5, 3) and model.class_names == ("bright", "dark", "middle")
    for other in (load_model(done.path, space["Encoder"]), open_run(done.path).model(network=space["Encoder"])):
        torch.testing.assert_close(other(images), model(images))
    assert model.classify(pixels) == [model.class_names[k] for k in model(images).argmax(-1)]
    with pytest.raises(InputError, match=r"pixels \(5, 16, 16\): expected \(N, 1, 16, 16\)"):
        model.preprocess(pixels[:, 0])
    with pytest.raises(
        InputError, match=r"made with its own encoder; in Python, `fedproc.load_model\(path, network=Enc"
    ):
        load_model(done.path)
    kept = run(Experiment(method="fedavg", **toy), progress=False)  # without a folder
    assert kept.path is None and kept.model()(images).shape == (5, 3)


def test_a_changed_encoder_does_not_load_a_model(own: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    done, space = own
    assert done.path is not None
    path, changed = done.path / "model.safetensors", cell(ENCODER.replace("ReLU", "Tanh"))["Encoder"]
    for load in (lambda: load_model(path, changed), lambda: open_run(path.parent).model(network=changed)):
        with pytest.raises(InputError, match=r"network __main__:Encoder: its source has changed since .*safetensors"):
            load()
    with pytest.raises(InputError, match=r"<lambda>: not the encoder that .* was trained with, __main__:Encoder"):
        load_model(path, lambda: space["Encoder"]())
    older = _without_source(path, tmp_path / "older.safetensors")
    assert load_model(older, changed).class_names == done.model().class_names  # nothing is known of its encoder
    with pytest.raises(InputError, match="<lambda>: not the encoder that"):
        load_model(older, cell("f = lambda: None\n")["f"])


def _without_source(path: Path, to: Path) -> Path:
    """A model file as earlier versions wrote it."""
    about, raw, _ = read_about(path)
    said = {name: value for name, value in raw.items() if name not in ("encoder_source", "checksum")}
    assert len(said) == len(raw) - 2
    to.write_bytes(packed(read_tensors(path, about, raw), said))
    return to


def test_a_model_of_a_lambda_and_of_a_module(toy: dict[str, Any], tmp_path: Path) -> None:
    space = cell(ENCODER + "make = lambda: Encoder(6)\n")
    quick = {**toy, "method": "fedavg", "rounds": 1}
    run(Experiment(network=space["make"], **quick), tmp_path / "lambda", progress=False)
    with pytest.raises(InputError, match=r"`fedproc.load_model\(path, network=...\)` takes what it was made with"):
        load_model(tmp_path / "lambda")
    load_model(tmp_path / "lambda", cell(ENCODER + "x = 1; other = lambda: Encoder(6)\n")["other"])
    with pytest.raises(InputError, match="<lambda>: its source has changed since"):
        load_model(tmp_path / "lambda", cell(ENCODER + "make = lambda: Encoder(width=6)\n")["make"])
    run(Experiment(network=space["Encoder"](6), **quick), tmp_path / "module", progress=False)
    load_model(tmp_path / "module", space["Encoder"](6).eval())  # whose weights are others
    changed = cell(ENCODER.replace("ReLU", "Tanh"))["Encoder"](6)
    with pytest.raises(InputError, match="network __main__:Encoder: its source has changed since"):
        load_model(tmp_path / "module", changed)


def test_training_an_encoder_that_is_there_starts_from_its_weights(toy: dict[str, Any]) -> None:
    encoder = cell(ENCODER)["Encoder"](6)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    done = run(Experiment(method="fedavg", network=encoder, **{**toy, "lr": 1e-9, "rounds": 1}), progress=False)
    for name, tensor in done.model().network.encoder.state_dict().items():
        torch.testing.assert_close(tensor, before[name])
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def test_a_run_to_look_at(own: tuple[Run, dict[str, Any]]) -> None:
    done, _ = own
    shown = f"Run(scaled, seed 0: {100 * done.accuracy:.2f} % after 2 rounds, {done.path})"
    assert repr(done) == shown and repr(open_run(str(done.path))) == shown
    html = done._repr_html_()
    assert "<table" in html and f"{100 * done.accuracy:.2f} %" in html and "<script" not in html
    frame = done.to_frame()
    assert list(frame.index) == [1, 2] and frame["test_accuracy"].iloc[-1] == done.accuracy
    assert "seconds_train" in frame
    figure = done.plot()
    assert isinstance(figure, Figure) and figure._repr_png_()[0].startswith(b"\x89PNG")  # type: ignore[attr-defined]
    assert "| final accuracy |" in str(done.table())


def test_a_comparison_with_a_class_among_the_methods(toy: dict[str, Any], tmp_path: Path) -> None:
    scaled = cell(METHOD)["Scaled"]
    variants = {"double": {"method": scaled, "scaled.factor": 2.0}}
    done = compare(
        ["fedavg", scaled], [0, 1], tmp_path / "cmp", variants=variants, progress=False, scaled={"factor": 1.0}, **toy
    )
    assert [row.label for row in done.rows] == ["fedavg", "scaled", "double"]
    assert [run.config["scaled"] for run in done.rows[2].runs] == [{"factor": 2.0}] * 2  # type: ignore[attr-defined]
    fedavg, own, _ = (row.by_seed("final_accuracy") for row in done.rows)
    assert fedavg == own  # a factor of 1 changes nothing
    assert repr(done).startswith("Comparison(fedavg ") and "± " in repr(done) and "2 seeds" in repr(done)
    assert done._repr_html_().count("<table") == 2
    assert done.to_frame().loc[("double", 1), "rounds"] == 2
    assert isinstance(done.plot(), Figure)
    opened = fedproc.open_comparison(tmp_path / "cmp")
    assert isinstance(opened, Comparison) and str(opened.table()) == str(done.table())
    with pytest.raises(InputError, match="no run is in it"):
        open_run(tmp_path / "cmp")
    with pytest.raises(InputError, match="no finished run is in it"):
        fedproc.open_comparison(tmp_path)


@pytest.mark.slow
def test_classes_of_a_notebook_reach_workers(toy: dict[str, Any], tmp_path: Path) -> None:
    space = cell(METHOD + ENCODER)
    how: dict[str, Any] = {**toy, "network": space["Encoder"], "progress": False}
    alone = compare(["fedavg", space["Scaled"]], [0], tmp_path / "one", **how)
    shared = compare(["fedavg", space["Scaled"]], [0], tmp_path / "two", workers=2, **how)
    assert (tmp_path / "two" / "workers" / "workers.json").exists()
    for one, other in zip(alone.rows, shared.rows, strict=True):
        assert one.by_seed("final_accuracy") == other.by_seed("final_accuracy")
    configs = [json.loads((tmp_path / where / "scaled/seed-0/config.json").read_text()) for where in ("one", "two")]
    assert configs[0] == configs[1] and configs[0]["plugin_sha256"]


def test_frames_without_pandas(own: tuple[Run, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pandas is not installed; `pip install pandas`"):
        own[0].to_frame()


class Counting(Watcher):
    """What docs/notebooks.md shows."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, float]] = []
        self.over = False

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        assert "3 classes" in about and [run.rounds for run in runs] == [2]

    def update(self, run: Watched) -> None:
        self.seen.append((run.label, run.round, run.records[-1]["test_accuracy"]))


def test_a_watcher_is_told_of_every_round(toy: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    watcher = Counting()
    done = run(Experiment(method="fedavg", **toy), watcher=watcher, progress=False)
    assert watcher.seen == [("fedavg", r["round"], r["test_accuracy"]) for r in done.metrics]
    assert capfd.readouterr() == ("", "")
    run(Experiment(method="fedavg", **toy))
    out, err = capfd.readouterr()
    assert out == "" and "fedavg  round 2/2  accuracy" in err


def documented() -> Any:
    """The watcher that docs/notebooks.md shows."""
    page = (Path(__file__).parents[2] / "docs" / "notebooks.md").read_text()
    (shown,) = re.findall(r"```python\n(class Best.*?)\n\nfedproc\.run", page, re.DOTALL)
    space: dict[str, Any] = {"fedproc": fedproc}
    exec(shown, space)
    return space["Best"]()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_documented_watcher_survives_workers_and_failures(
    workers: int, toy: dict[str, Any], tmp_path: Path
) -> None:
    best = documented()
    done = compare(["fedavg", failing()], [0], tmp_path, workers=workers, watcher=best, progress=False, **toy)
    assert done.rows[1].failed == [0]
    seen = [(each["test_accuracy"], each["round"]) for each in done.rows[0].runs[0].metrics]
    assert best.seen == max(seen)


class Ended(Watcher):
    def __init__(self) -> None:
        self.told: list[str] = []

    def update(self, run: Watched) -> None:
        self.told.append(str(run.ended))


def test_a_watcher_is_told_once_of_a_run_that_ends(toy: dict[str, Any]) -> None:
    watcher = Ended()
    run(Experiment(method=failing(), **toy), watcher=watcher, progress=False)
    assert len(watcher.told) == 1 and "IndexError" in watcher.told[0]


def test_pixels_of_the_test_set_are_classified_as_in_training(own: tuple[Run, dict[str, Any]]) -> None:
    from fedproc.simulation.preparation import Library

    done, _ = own
    assert done.experiment is not None
    test = Library().images(done.experiment).test
    found = done.model().classify(torch.from_numpy(test.images))
    names = done.model().class_names
    assert np.mean([names[k] == each for k, each in zip(test.labels, found, strict=True)]) == pytest.approx(
        done.accuracy
    )


@pytest.mark.slow
def test_objects_in_stacked_lanes_give_what_they_give_one_by_one(toy: dict[str, Any]) -> None:
    space = cell(METHOD + ENCODER)
    given = {**toy, "method": space["Scaled"], "network": space["Encoder"], "rounds": 1, "dtype": "float64"}
    one, other = (run(Experiment(**given, executor=name), progress=False).model() for name in ("serial", "stacked"))
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor)
