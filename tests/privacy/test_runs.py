"""Private runs of the simulator: what leaves a client, what is on record, and that it goes on where it stopped."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ToyLibrary, Train, toy_experiment, toy_images, toy_session

from fedproc.comparison.compare import Comparison, Row
from fedproc.errors import InputError, RunError, with_flags
from fedproc.experiment import Experiment
from fedproc.lanes import choose
from fedproc.methods import METHODS
from fedproc.protocol import codec
from fedproc.protocol.plan import first_state
from fedproc.protocol.rounds import played
from fedproc.protocol.task import SERVER, Kind, Reply, Task
from fedproc.protocol.weights import Weights
from fedproc.report import contents
from fedproc.report.gather import gather
from fedproc.report.page import Page
from fedproc.report.summary import accuracies
from fedproc.runs.folder import RunFolder
from fedproc.runs.saved import read_run
from fedproc.simulation.drive import run_all
from fedproc.simulation.session import Session

NOISELESS = {"noise": 0.0, "clip": 1e6}
MORE = {"feddyn": {"equal": True}, "feddc": {"equal": True}, "fedproto": {"models": "shared"}}
REFUSED = {"fednova", "fpl", "solo", "central", "fedper", "fedrep", "fedbn"}
REFUSED |= {"mime-lite", "fedma", "fine-tuning", "ditto", "fedtgp"}
TRIED = {"fedavg", "fedproc", "scaffold+fedproc", "moon", "fednh", "feddc", "two-stage"}  # the others in the slow tests
PRIVATE = [
    method if method in TRIED else pytest.param(method, marks=pytest.mark.slow)
    for method in sorted({*METHODS} - REFUSED)
]


@pytest.mark.parametrize("method", PRIVATE)
def test_all_that_leaves_a_client_is_one_vector_of_bounded_length(method: str) -> None:
    """Every byte: the head of the message holds no number but the payload's own, the tensors are the expected ones."""
    privacy = {"noise": 0.1, "clip": 0.05, "clipping": "adaptive"}
    session = Session(toy_experiment(method=method, privacy=privacy, **more_of(method)), ToyLibrary(toy_images()))
    executor = choose("serial", 1, 1, [session.setting], 1)
    heads: dict[str, set[bytes]] = {}
    bound = 0.05

    def reply_to(task: Task) -> Reply:
        reply = session.site(task.client).do(task, executor)
        if task.client == SERVER:
            return reply
        message = codec.encode_reply(reply)
        heads.setdefault(str(task.kind), set()).add(message.head)
        found = codec.decode_reply(message).payload
        assert found is not None
        if task.kind is Kind.TRAIN:
            assert set(found.tensors) == {"update", "unclipped"}
            assert float(torch.linalg.vector_norm(found.tensors["update"])) <= task.privacy["clip"] * (1 + 1e-6)
            assert abs(float(found.tensors["unclipped"])) == 0.5
            assert len(message.body) < 4 * (found.tensors["update"].numel() + 1) + 300  # names and shapes, no more
        return reply

    first = first_state(session.plan, Weights(*session.setting.layout.read(session.setting.network).tensors().values()))
    last = list(played(session.plan, first, reply_to))[-1]
    executor.close()
    assert set(heads) == {"describe", "train"}  # nothing else was asked
    assert all(len(same) == 1 for same in heads.values())  # no head differs from another's
    assert json.loads(heads["describe"].pop())["counts"] == {"samples": 1}
    train = json.loads(heads["train"].pop())
    assert train == {
        "version": codec.VERSION, "what": "reply", "answered": True, "counts": {}, "refused": None, "seconds": {},
    }  # fmt: skip
    assert last.record is not None
    known = {"round", "lr", "alpha", "clients", "samples", "bytes_up", "bytes_down", "update_norm", "clip", "epsilon"}
    measured = {name for name in last.record if "accuracy" in name or name in MEASURED}
    assert set(last.record) - measured == known
    assert not any("client" in name for name in measured)
    assert bound != last.record["clip"] and math.isfinite(float(last.state.weights.params.sum()))


MEASURED = {"test_loss", "macro_f1", "auc", "confusion", "seconds", "final_models"}


def more_of(method: str) -> dict[str, object]:
    return {"clients": 4, "batch_size": 32, **({method: MORE[method]} if method in MORE else {})}


@pytest.mark.parametrize("method", ["fedavg", "fedproc", "scaffold", "fedadam", "feddyn"])
def test_without_noise_and_clipping_it_is_the_method_with_equal_shares(train: Train, method: str) -> None:
    """Of clients that have the same number of samples, so that shares are equal without privacy, too."""
    given = {
        "partition": "shards",
        "classes_per_client": 4,
        "clients": 4,
        "dtype": "float64",
        "rounds": 3,
        "min_size": 1,
    }
    given |= {"method": method, **({method: MORE[method]} if method in MORE else {})}
    if method == "fedproc":  # class means of any length would be shortened, and older rounds remembered
        given["fedproc"] = {"start": "zeros"}
    plain = train(toy_images(), **given)
    privacy = {**NOISELESS, "prototype_memory": 0.0, "prototype_bound": 1e3}
    private = train(toy_images(), privacy=privacy, **given)
    assert len(set(plain.client_sizes)) == 1
    one, other = plain.state.weights.params, private.state.weights.params
    assert float((one - other).norm() / one.norm()) < 1e-9
    assert [r["test_accuracy"] for r in plain.records] == [r["test_accuracy"] for r in private.records]


def test_executors_agree(train: Train) -> None:
    given = {"method": "fedproc", "dtype": "float64", "privacy": {"noise": 0.5, "where": "client"}, "rounds": 2}
    serial, stacked = (train(toy_images(), executor, 3, **given) for executor in ("serial", "stacked"))
    one, other = serial.state.weights.params, stacked.state.weights.params
    assert float((one - other).norm() / one.norm()) < 1e-9


def test_an_empty_round_is_a_round(train: Train) -> None:
    given = {"method": "fedproc", "sample": 0.2, "rounds": 8, "privacy": {"noise": 0.3}}
    session = train(toy_images(), **given)
    sizes = [len(session.plan.privacy.cohort(range(5), t)) for t in range(8)]  # type: ignore[union-attr]
    assert 0 in sizes
    assert [record["clients"] for record in session.records] == [1] * 8  # the expected one
    empty = sizes.index(0)
    assert session.records[empty]["update_norm"] > 0  # of the noise alone


def test_epsilon_grows_and_a_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    given = {"method": "fedproc", "sample": 0.5, "checkpoint_every": 1}
    privacy = {"noise": 2.0, "clipping": "adaptive", "clip": 0.3}

    def run(folder: str, rounds: int, **changed: object) -> dict[str, object]:
        experiment = toy_experiment(
            **{**given, "privacy": privacy, **changed}, rounds=rounds, fedproc={"alpha": 0.5, "start": "zeros"}
        )
        (done,) = run_all({"x": (experiment, tmp_path / folder)}, library=ToyLibrary(toy_images()))
        return done.result

    run("parts", 2)
    whole, parts = run("whole", 4), run("parts", 4)
    saved = [read_run(tmp_path / name) for name in ("whole", "parts")]
    assert saved[0] is not None and saved[1] is not None
    for one, other in zip(saved[0].metrics, saved[1].metrics, strict=True):
        assert {n: v for n, v in one.items() if n not in ("seconds", "chain")} == {
            n: v for n, v in other.items() if n not in ("seconds", "chain")
        }
    spent = [record["epsilon"] for record in saved[0].metrics]
    assert spent == sorted(spent) and spent[0] < spent[-1]
    assert whole["privacy"] == parts["privacy"]
    assert whole["privacy"]["epsilon"] == spent[-1]  # type: ignore[index]
    table = accuracies(Comparison([Row.of("x", [saved[0]])], None, "x"))
    assert table.rows[0][table.heads.index("epsilon")].value == spent[-1]
    (group,) = gather([tmp_path / "whole"]).groups
    assert contents._partition(Page(), "x", group) == []  # which would tell what clients have


class Killed(Exception): ...


@pytest.mark.parametrize("written", [False, True])
def test_a_round_with_secure_noise_that_was_told_is_not_done_again(
    written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the checkpoint of round 3 and its line, or after both."""
    given = {"method": "fedavg", "sample": 0.5, "epochs": 1, "checkpoint_every": 50, "eval_every": 2}
    append = RunFolder.append_lines

    def killed(folder: RunFolder, said: Mapping[str, Any]) -> None:
        if written or said["metrics.jsonl"]["round"] < 3:
            append(folder, said)
        if said["metrics.jsonl"]["round"] == 3:
            raise Killed

    def work(folder: Path, rounds: int = 4) -> None:
        experiment = toy_experiment(**given, rounds=rounds, privacy={"noise": 1.0, "random": "secure"})
        run_all({"x": (experiment, folder)}, library=ToyLibrary(toy_images()))

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_lines", killed)
        with pytest.raises(Killed):
            work(tmp_path / "run")
    told = (tmp_path / "run/metrics.jsonl").read_text()
    assert len(told.splitlines()) == (3 if written else 2)
    if written:
        shutil.copytree(tmp_path / "run", tmp_path / "damaged")
        damaged = tmp_path / "damaged/checkpoint/round-000003/checkpoint.json"
        damaged.write_text("{")
        with pytest.raises(RunError, match=r"round-000003.*; round 3 is on record, and done again its noise"):
            work(tmp_path / "damaged")
        assert damaged.exists() and (tmp_path / "damaged/metrics.jsonl").read_text() == told
        with pytest.raises(RunError, match=r"round 3 of .* was not evaluated, .* take more rounds"):
            work(tmp_path / "run", 3)
    kept = json.loads((tmp_path / "run/checkpoint/round-000003/checkpoint.json").read_text())["values"]["untold"]
    work(tmp_path / "run")
    whole = (tmp_path / "run/metrics.jsonl").read_text()
    assert whole.startswith(told) and len(whole.splitlines()) == 4
    third = json.loads(whole.splitlines()[2])
    del third["chain"]
    assert third == kept["metrics.jsonl"]  # of the one time that round 3 was drawn


@pytest.mark.parametrize("damage", ["cut", "line", "file"])
def test_no_damage_makes_secure_noise_be_drawn_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """metrics.jsonl lost its last line, or all: what its checkpoint holds is put back, or the run is refused."""
    given = {"method": "fedavg", "sample": 0.5, "epochs": 1, "eval_every": 1}
    experiment = toy_experiment(**given, rounds=4, privacy={"noise": 1.0, "random": "secure"})
    append, library = RunFolder.append_lines, ToyLibrary(toy_images())

    def left(folder: RunFolder, said: Mapping[str, Any]) -> None:
        append(folder, said)
        if said["metrics.jsonl"]["round"] == 3:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append_lines", left)
        with pytest.raises(Killed):
            run_all({"x": (experiment, tmp_path / "run")}, library=library)
    path = tmp_path / "run/metrics.jsonl"
    told = path.read_text()
    if damage == "file":
        path.unlink()
        with pytest.raises(InputError, match="fewer than the 3 rounds done"):
            run_all({"x": (experiment, tmp_path / "run")}, library=library)
        return
    path.write_text(told[:-40] if damage == "cut" else "".join(told.splitlines(keepends=True)[:-1]))
    run_all({"x": (experiment, tmp_path / "run")}, library=library)
    assert path.read_text().startswith(told) and len(path.read_text().splitlines()) == 4


def test_a_private_round_without_answers_is_noise_alone() -> None:
    """And what is on record of it is what is on record of others."""
    session = toy_session(method="fedavg", privacy={"noise": 1.0}, rounds=3, epochs=1)
    executor = choose("serial", 1, 1, [session.setting], 1)

    def reply_to(task: Task) -> Reply:
        if task.kind is Kind.TRAIN and task.round == 1:
            return Reply(None, "lost")
        return session.site(task.client).do(task, executor)

    first = first_state(session.plan, Weights(*session.setting.layout.read(session.setting.network).tensors().values()))
    records = [progress.record for progress in played(session.plan, first, reply_to) if progress.record]
    executor.close()
    assert records[1]["update_norm"] > 0 and len({frozenset(record) for record in records}) == 1
    assert {record["bytes_up"] for record in records} == {records[0]["bytes_up"]}
    assert all(record["seconds"]["train"] == record["seconds"]["prototypes"] == 0 for record in records)


def test_rounds_are_not_added_beyond_the_budget(tmp_path: Path) -> None:
    def run(rounds: int, privacy: dict[str, object]) -> None:
        experiment = toy_experiment(method="fedavg", sample=0.5, rounds=rounds, privacy=privacy)
        run_all({"x": (experiment, tmp_path / "run")}, library=ToyLibrary(toy_images()))

    run(1, {"epsilon": 5.0})
    with pytest.raises(InputError) as caught:
        run(2, {"epsilon": 5.0})
    assert "its noise keeps --privacy.epsilon 5 over exactly so many rounds" in with_flags(caught.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"method": "fednova"}, "--merge normalised needs each client's weights by themselves"),
        ({"method": "fpl"}, "its server needs each client's answer by itself"),
        ({"method": "solo"}, "it has no federation"),
        ({"method": "mime-lite"}, "its server needs each client's answer by itself"),
        ({"method": "fedma"}, "it says itself who takes part"),
        ({"method": "fine-tuning"}, "it says itself who takes part"),
        ({"method": "fedtgp", "fedtgp": {"models": "shared"}}, "learns from each client's class means"),
        ({"method": "fedproc", "fedproc": {"start": "data"}}, "--fedproc.start data asks all clients"),
        ({"method": "fedproc", "fedproc": {"of": "averaged"}}, "--fedproc.of averaged asks clients"),
        ({"method": "fedproc", "fedproc": {"weighting": "count"}}, "counts, which stay hidden"),
        ({"method": "feddyn"}, "take --feddyn.equal true"),
        ({"method": "fedsam", "fedsam": {"local": 0.5}}, "take --fedsam.local 1"),
        ({"method": "fedavg", "ccvr": "lda"}, "--ccvr lda: not for a private run"),
        ({"method": "fedavg", "val_fraction": 0.1}, "validation images are the clients' own"),
        ({"method": "fedavg", "keep_clients": True}, "--keep-clients true: not for"),
        ({"method": "fedavg", "normalize": "measured"}, "not protected; take known"),
        ({"method": "fedavg", "class_weights": "balanced"}, "take own"),
        ({"method": "fedavg", "privacy": {"clip": 2.0}}, "--privacy: needs --privacy.epsilon, for example 8"),
        ({"method": "fedavg", "privacy": {"noise": -1}}, "--privacy.noise -1: expected at least 0"),
        ({"method": "fedavg", "privacy": {"nois": 1}}, "--privacy.nois: no such option; did you mean"),
        ({"method": "fedavg", "privacy": {"epsilon": 8, "noise": 0}}, "has no epsilon at all"),
        ({"method": "fedavg", "privacy": 8}, "expected a table of options"),
    ],
)
def test_what_cannot_be_private_is_refused_in_words(given: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        Experiment(**{"privacy": {"noise": 1.0}, **given})
    assert reason in with_flags(caught.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"method": "ditto"}, "who evaluates clients' own models tells of them"),
        ({"method": "fedper"}, "who evaluates clients' own models tells of them"),
        ({"method": "fedproto", "fedproto": {"models": "personal"}}, "clients' own models"),
        ({"method": "fedavg", "network": "resnet18", "width": 4}, "batch-norm statistics"),
    ],
)
def test_what_shows_only_with_the_network_is_refused_too(given: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        toy_session(privacy={"noise": 1.0}, **given)
    toy_session(privacy={"noise": 1.0}, method="fedavg", network="resnet18", width=4, norm="group")


def test_a_method_of_ones_own_is_private_unless_it_collects_answers(tmp_path: Path) -> None:
    text = "from fedproc.methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    name = 'mine'\n    summary = 'x'\n"
    collects = (
        "\n    def collect(self, state, sums, answer):\n        return {**super().collect(state, sums, answer)}\n"
    )
    aligns = "\n    def align(self, answers):\n        return [*answers]\n"
    path = tmp_path / "mine.py"
    for more, fine in (("", True), (collects, False), (aligns, False), ("    additive = True\n" + collects, True)):
        path.write_text(text + more)
        if fine:
            Experiment(method="mine", plugin=[path], privacy={"noise": 1.0})
        else:
            with pytest.raises(InputError, match="each client's answer by itself"):
                Experiment(method="mine", plugin=[path], privacy={"noise": 1.0})


def test_flags_without_effect_are_refused() -> None:
    from fedproc.effect import expect_effect

    for option, reason in (
        ("quantile", "is for --privacy.clipping adaptive"),
        ("prototype_scale", "sends no prototypes"),
    ):
        given = {"method": "fedavg", "privacy": {"noise": 1.0, option: 0.4}}
        with pytest.raises(InputError) as caught:
            expect_effect(given, [Experiment(**given)])
        assert reason in with_flags(caught.value)
    given = {"method": "fedproc", "privacy": {"noise": 1.0, "prototype_scale": 0.4}}
    expect_effect(given, [Experiment(**given)])
