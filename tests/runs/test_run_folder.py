"""Run folders: continued, finished, refused, crashed at every step of writing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ToyLibrary, contents, toy_experiment, toy_images, work
from safetensors import safe_open
from safetensors.torch import load_file

from fedproc import InputError, RunError, files
from fedproc.runs.client_states import ClientStates
from fedproc.runs.saved import read_run
from fedproc.simulation.session import Session

IMAGES = toy_images()
TOYS = Path(__file__).resolve().parent.parent / "toy_methods.py"
REMEMBERS: dict[str, Any] = {"method": "remembers", "plugin": [TOYS]}


def test_what_a_finished_folder_holds(tmp_path: Path) -> None:
    session = work(tmp_path / "run")
    names = sorted(str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert names == [
        "checkpoint/round-000004/checkpoint.json",
        "checkpoint/round-000004/shard-000.safetensors",
        "config.json",
        "confusion.jsonl",
        "metrics.jsonl",
        "model.safetensors",
        "partition.json",
        "result.json",
    ]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for name in ("final_accuracy", "best_accuracy", "last10_accuracy", "final_prototype_accuracy"):
        assert 0 <= result[name] <= 1
    assert result["seconds"] > 0 and result["samples_per_second"] > 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    for name in (
        "test_accuracy",
        "prototype_accuracy",
        "test_loss",
        "train_loss",
        "train_cross_entropy",
        "train_prototype_loss",
        "alpha",
        "clients",
        "samples",
        "bytes_up",
        "bytes_down",
        "update_norm",
        "client_drift",
    ):
        assert all(name in line for line in lines)
    assert set(lines[0]["seconds"]) == {"train", "prototypes", "merge", "evaluation"}
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["fedproc"])
        assert about["class_names"] == list(IMAGES.class_names) and about["mean"] == [0.2860]
        assert file.get_tensor("prototypes").shape == (4, 256)
        named = session.setting.layout.named(session.state.weights)
        assert torch.equal(file.get_tensor("encoder.0.weight"), named["encoder.0.weight"])


def test_last10_is_the_mean_of_evaluated_rounds_among_the_last_ten() -> None:
    from fedproc.runs.result import summarise

    records = [
        {"round": r, "seconds": {"train": 1.0}, "samples": 5, "bytes_up": 1, "bytes_down": 2}
        | ({"test_accuracy": r / 100, "prototype_accuracy": 0.5} if r % 4 == 0 else {})
        for r in range(1, 21)
    ]
    result = summarise(records, "test")
    assert result["final_accuracy"] == 0.20 and result["best_accuracy"] == 0.20
    assert result["last10_accuracy"] == pytest.approx((0.12 + 0.16 + 0.20) / 3)
    assert result["seconds"] == 20 and result["samples_per_second"] == 5


@pytest.mark.parametrize(("evaluated", "last"), [((10, 11, 20, 21), (0.11, 0.20)), ((7, 14, 21), (0.14, 0.21))])
def test_a_round_of_clients_own_models_alone_is_not_counted_again(
    evaluated: tuple[int, ...], last: tuple[float, float]
) -> None:
    """Round 21 has the model of round 20, and stands for it where that was not evaluated."""
    from fedproc.runs.result import summarise

    records = [
        {"round": r, "seconds": {}, "samples": 5, "bytes_up": 1, "bytes_down": 2}
        | ({"test_accuracy": r / 100, "prototype_accuracy": r / 50} if r in evaluated else {})
        for r in range(1, 22)
    ]
    result = summarise(records, "test", own_rounds=1)
    assert result["last10_accuracy"] == pytest.approx(sum(last) / 2) and result["rounds"] == 21
    assert result["last10_prototype_accuracy"] == pytest.approx(sum(last))


@pytest.mark.parametrize("method", ["fedavg", "fedproc"])
def test_a_crash_at_any_write_loses_nothing(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work(tmp_path / "whole", method=method)
    expected = contents(tmp_path / "whole")
    real = os.replace
    crashes = 0
    for stop in range(100):
        folder = tmp_path / f"crash-{stop}"
        moves = 0

        def move(source: Any, target: Any, stop: int = stop) -> None:
            nonlocal moves
            if moves == stop:
                raise SystemExit("killed")
            moves += 1
            real(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(files.os, "replace", move)
            try:
                work(folder, method=method)
                break
            except SystemExit:
                crashes += 1
        assert not list(folder.rglob(".tmp-*"))
        work(folder, method=method)
        assert contents(folder) == expected
    assert crashes >= 5


def test_left_overs_of_a_kill_are_swept(tmp_path: Path) -> None:
    work(tmp_path / "a")
    work(tmp_path / "b", rounds=4)
    (tmp_path / "b" / "result.json").unlink()
    (tmp_path / "b" / ".tmp-model.safetensors").write_bytes(b"half")
    (tmp_path / "b" / "checkpoint" / ".tmp-round-000009").mkdir()
    with (tmp_path / "b" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "te')
    work(tmp_path / "b")
    assert contents(tmp_path / "b") == contents(tmp_path / "a")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    work(tmp_path)
    before = contents(tmp_path)
    again = work(tmp_path)
    assert again.result is not None and again.result["final_accuracy"] == before["result.json"]["final_accuracy"]
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": 0.02}, r"lr 0\.02: the run in .* has 0\.05"),
        ({"model_seed": 5}, "model_seed 5: the run in .* has 0"),
        ({"fedproc": {"tau": 0.5}}, r"fedproc\.tau 0\.5: the run in .* has 1\.0"),
        ({"method": "fedavg"}, "method fedavg: the run in .* has fedproc"),
        ({"rounds": 6}, "rounds 6: .*alpha falls to 0 over all rounds"),
    ],
)
def test_another_config_is_refused_naming_the_field(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    work(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(InputError, match=words):
        work(tmp_path, **changes)
    assert contents(tmp_path) == before


def test_what_does_not_change_the_experiment_may_change(tmp_path: Path) -> None:
    work(tmp_path)
    assert work(tmp_path, checkpoint_every=1, executor="serial", lanes=2).result is not None


def test_other_data_is_refused(tmp_path: Path) -> None:
    work(tmp_path)
    with pytest.raises(InputError, match="not the data that the run in"):
        work(tmp_path, toy_images(per_class=41))


def test_fresh_starts_over_and_leaves_strangers_alone(tmp_path: Path) -> None:
    work(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    work(tmp_path, fresh=True, lr=0.02)
    assert json.loads((tmp_path / "config.json").read_text())["lr"] == 0.02
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_more_rounds_continue_where_nothing_depends_on_them(tmp_path: Path) -> None:
    for given in ({"method": "fedavg"}, {"method": "fedproc", "fedproc": {"alpha": 0.5}}):
        folder = tmp_path / str(given["method"])
        work(folder, rounds=2, **given)
        work(folder, rounds=4, **given)
        work(tmp_path / "whole", rounds=4, fresh=True, **given)
        assert contents(folder) == contents(tmp_path / "whole")
        with pytest.raises(InputError, match=r"rounds 3: .* has done 4"):
            work(folder, rounds=3, **given)


def test_a_folder_of_other_things_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match=r"holds thesis\.tex, expected a run folder"):
        work(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="a file is in the way"):
        work(tmp_path / "thesis.tex")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    session = Session(toy_experiment(), ToyLibrary(IMAGES))
    session.claim(tmp_path)
    with pytest.raises(RunError, match="another process is at work"):
        work(tmp_path)
    session.close()
    work(tmp_path, rounds=2, checkpoint_every=5)


def test_divergence_is_recorded_and_final(tmp_path: Path) -> None:
    session = work(tmp_path, network="toy_networks:Explodes")
    assert session.result is not None
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["status"] == "diverged" and result["round"] == 1
    assert "client 0" in result["reason"]
    assert work(tmp_path, network="toy_networks:Explodes").result == session.result


def test_client_states_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    whole = work(tmp_path / "whole", **REMEMBERS, sample=0.6)
    counts = [whole.states.get(client) for client in range(5)]
    assert sum(float(c["times"]) for c in counts if c is not None) == 4 * 3  # three of five clients in four rounds
    work(tmp_path / "parts", **REMEMBERS, sample=0.6, rounds=2)
    work(tmp_path / "parts", **REMEMBERS, sample=0.6, rounds=4)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_stacked_lanes_carry_client_states(train: Any) -> None:
    given = {**REMEMBERS, "rounds": 3, "dtype": "float32"}
    serial, stacked = train(IMAGES, "serial", 1, **given), train(IMAGES, "stacked", 3, **given)
    torch.testing.assert_close(serial.state.weights.params, stacked.state.weights.params, rtol=1e-4, atol=1e-5)
    assert isinstance(stacked.states, ClientStates) and float(stacked.states.get(0)["times"]) == 3  # type: ignore[index]


def test_a_finished_run_without_its_checkpoint_keeps_its_metrics(tmp_path: Path) -> None:
    work(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "checkpoint")
    assert work(tmp_path).result is not None
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_changed_partition_file_is_noticed_and_a_moved_one_is_not(tmp_path: Path) -> None:
    path, moved = tmp_path / "p.json", tmp_path / "moved.json"
    path.write_text(json.dumps([list(range(80)), list(range(80, 160))]))
    work(tmp_path / "run", partition="file", partition_file=path)
    moved.write_bytes(path.read_bytes())
    assert work(tmp_path / "run", partition="file", partition_file=moved).result is not None
    assert json.loads((tmp_path / "run" / "config.json").read_text())["clients"] == 2
    path.write_text(json.dumps([list(range(70)), list(range(70, 160))]))
    with pytest.raises(InputError, match="partition_file_sha256"):
        work(tmp_path / "run", partition="file", partition_file=path)


def test_a_damaged_checkpoint_does_not_stay_in_the_way(tmp_path: Path) -> None:
    given = {"method": "scaffold", "client_memory": 0, "checkpoint_every": 1}
    work(tmp_path / "whole", **given)
    work(tmp_path / "run", **{**given, "rounds": 2})
    folder = tmp_path / "run" / "checkpoint"
    shutil.copytree(folder / "round-000002", folder / "round-000003")
    (folder / "round-000003" / "checkpoint.json").write_text("{")
    work(tmp_path / "run", **given)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.parametrize("method", ["scaffold", "moon"])
def test_an_interrupt_at_any_write_leaves_state_and_clients_of_one_round(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"method": method, "client_memory": 0, "sample": 0.6, "checkpoint_every": 3}
    work(tmp_path / "whole", **given)
    expected = contents(tmp_path / "whole")
    real = os.replace
    interrupts = 0
    for stop in range(200):
        moves = 0

        def move(source: Any, target: Any, stop: int = stop) -> None:
            nonlocal moves
            moves += 1
            if moves == stop + 1:
                raise KeyboardInterrupt  # and the handler saves, by further moves
            real(source, target)

        folder = tmp_path / f"stop-{stop}"
        with monkeypatch.context() as patch:
            patch.setattr(files.os, "replace", move)
            try:
                work(folder, **given)
                break
            except KeyboardInterrupt:
                interrupts += 1
        work(folder, **given)
        found = contents(folder)
        assert [name for name in expected if found.get(name) != expected[name]] == [], stop
    assert interrupts > 10


def test_clients_of_the_last_round_are_kept_when_asked(tmp_path: Path) -> None:
    """Their models, before the merge: the weighted mean of them is the model."""
    session = work(tmp_path / "kept", keep_clients=True, rounds=2)
    sizes = session.client_sizes
    files = sorted((tmp_path / "kept" / "models").iterdir())
    assert [file.name for file in files] == [f"client-{client:03d}.safetensors" for client in range(5)]
    own = [load_file(file)["classifier.weight"].double() for file in files]
    mean = sum(size * weight for size, weight in zip(sizes, own, strict=True)) / sum(sizes)
    model = load_file(tmp_path / "kept" / "model.safetensors")["classifier.weight"]
    torch.testing.assert_close(model.double(), mean, rtol=1e-5, atol=1e-7)
    work(tmp_path / "without", rounds=2)
    assert not (tmp_path / "without" / "models").exists()


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("result.json", "{}", r"result\.json: status is missing"),
        ("result.json", '{"status": "finished"}', r"result\.json: rounds is missing"),
        (
            "result.json",
            '{"status": "finished", "rounds": 4, "seconds": 1.0, "final_accuracy": "x"}',
            "final_accuracy x: expected a number",
        ),
        ("result.json", '{"status": "fini', r"result\.json: cannot be read"),
        ("metrics.jsonl", "", r"result\.json: metrics\.jsonl beside it ends with round 0 of 4"),
        ("config.json", '{"method": "fed', r"config\.json: cannot be read"),
    ],
)
def test_a_damaged_finished_run_is_named(name: str, text: str, words: str, tmp_path: Path) -> None:
    work(tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}
    with pytest.raises(InputError, match=words):
        read_run(tmp_path / "run")
    with pytest.raises(InputError, match=rf"{words}.*; remove .*run to have this run made again"):
        work(tmp_path / "run")
    assert before == {path: path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file()}


def test_a_changed_config_is_noticed(tmp_path: Path) -> None:
    work(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "cpv"'))
    with pytest.raises(InputError, match=r"config\.json: its checksum is wrong: it was changed; remove .* made again"):
        work(tmp_path)
    with pytest.raises(InputError, match="its checksum is wrong"):
        read_run(tmp_path)
    path.write_text(path.read_text().replace('"device": "cpv"', '"device": "cpu"').replace("checksum", "checkrum"))
    with pytest.raises(InputError, match="its checksum is wrong"):
        read_run(tmp_path)


def test_a_result_that_lost_its_checksum_is_noticed(tmp_path: Path) -> None:
    work(tmp_path)
    path = tmp_path / "result.json"
    path.write_text(path.read_text().replace('"checksum"', '"checkrum"'))
    with pytest.raises(InputError, match=r"result\.json: its checksum is wrong: it was changed"):
        read_run(tmp_path)


def test_a_config_without_its_rounds_is_named(tmp_path: Path) -> None:
    work(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({n: v for n, v in json.loads(path.read_text()).items() if n != "rounds"}))
    with pytest.raises(InputError, match=r"config\.json: rounds is missing; remove .* made again"):
        work(tmp_path)
