"""The server's and the sites' halves of a federation with no network in between: what crosses is bytes all the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from places import CLASSES, LocalWire, Place, experiment, simulated, write_all, write_site
from safetensors.torch import load_file

from fedproc.beside import fine_tuned
from fedproc.data.outline import batch_size_for, epochs_for
from fedproc.errors import RunError
from fedproc.federate import trainer as trainers
from fedproc.federate.driver import Driver
from fedproc.federate.joining import Invitation, kind_of, tell
from fedproc.federate.segment import Options
from fedproc.protocol import codec
from fedproc.protocol.codec import Message
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Reply
from fedproc.runs.keeper import file_hash
from fedproc.simulation.drive import run


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def expect_same_model(one: Path, other: Path) -> None:
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert set(first) == set(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


SAME = ("train_loss", "test_accuracy", "prototype_accuracy", "averaged_accuracy", "bytes_up", "client_drift")


def sites_of(folder: Path) -> list[dict[str, dict[str, list[int]]]]:
    return [json.loads(line)["sites"] for line in (folder / "sites.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "method",
    ["fedproc", "scaffold", "moon", "fednova", "two-stage", "fedetf", "feddyn", "fedadam", "mime-lite", "fedma"],
)
def test_sites_train_what_the_simulator_trains(place: Place, method: str) -> None:
    given = {"method": method, "calibrate": 1.0, "lr_schedule": "cosine", "average_weights": 0.5}
    outcome, driver = place.play(place.wire(), **given)
    assert outcome == "finished", place.said
    everything = write_all(place.data, place.folder / "all.csv")
    beside = run(simulated(everything, **given), place.folder / "simulated")
    expect_same_model(place.folder / "runs/run", place.folder / "simulated")
    for here, there in zip(driver.records, beside.metrics, strict=True):
        for name in (
            "train_loss",
            "test_accuracy",
            "prototype_accuracy",
            "averaged_accuracy",
            "bytes_up",
            "client_drift",
        ):
            assert here[name] == there[name], name
        assert here["test_loss"] == pytest.approx(there["test_loss"], rel=1e-9)
    sites = [json.loads(line)["sites"] for line in (place.folder / "runs/run/sites.jsonl").read_text().splitlines()]
    assert sites == [
        json.loads(line)["sites"] for line in (place.folder / "simulated/sites.jsonl").read_text().splitlines()
    ]
    totals = [sum(site["total"]) for site in sites[-1].values()]
    assert totals == [16, 20, 24]


@pytest.mark.parametrize("merge", ["median", "multi-krum"])
def test_a_robust_merge_is_the_simulators(place: Place, merge: str) -> None:
    given = {"method": "scaffold+fedproc", "merge": merge, "rounds": 2}
    outcome, driver = place.play(place.wire(), **given)
    assert outcome == "finished", place.said
    beside = run(simulated(write_all(place.data, place.folder / "all.csv"), **given), place.folder / "simulated")
    expect_same_model(place.folder / "runs/run", place.folder / "simulated")
    assert [[r[name] for name in SAME if name in r] for r in driver.records] == [
        [r[name] for name in SAME if name in r] for r in beside.metrics
    ]


def test_images_become_squares_in_the_same_way_at_all_sites(place: Place) -> None:
    for path in place.data["a"].parent.glob("*.png"):
        with Image.open(path) as image:
            wide = image.resize((40, 16))
        wide.save(path)
    everything, losses = write_all(place.data, place.folder / "all.csv"), set()
    for fit in ("stretch", "pad"):
        given = {"method": "fedavg", "rounds": 1, "epochs": 1, "image_size": 16, "fit": fit}
        outcome, driver = place.play(place.wire(), run=fit, **given)
        assert outcome == "finished", place.said
        beside = run(simulated(everything, **given), place.folder / f"simulated-{fit}")
        assert driver.records[0]["train_loss"] == beside.metrics[0]["train_loss"]
        losses.add(beside.metrics[0]["train_loss"])
    assert len(losses) == 2


def test_optimizers_class_weights_and_augmentations_travel_with_the_run(place: Place) -> None:
    given = {"optimizer": "adamw", "class_weights": "balanced", "augment": "flip,rotate,colour", "lr": 0.002}
    given |= {"method": "fedavg", "rounds": 2}
    (place.kit("a") / "policy.toml").write_text("diagnostics = false\n")  # counts are no diagnostics
    outcome, _ = place.play(place.wire(), options={"alone": True}, **given)
    assert outcome == "finished", place.said
    everything = write_all(place.data, place.folder / "all.csv")
    run(simulated(everything, **given), place.folder / "simulated")
    here, there = (load_file(place.folder / name / "model.safetensors") for name in ("runs/run", "simulated"))
    for name in set(here) - {"prototypes", "known"}:  # which are diagnostics
        assert torch.equal(here[name], there[name]), name
    solo = {"method": "solo", "solo": {"epochs": 4, "start": "same"}}
    run(simulated(everything, **{**given, **solo}), place.folder / "solo")
    assert sites_of(place.folder / "runs/run-alone-2") == sites_of(place.folder / "solo")
    (told,) = (line for line in place.audit("a") if line["what"] == "class counts")
    assert set(told["tensors"]) == {"class_counts"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("network", ["simple-cnn", "resnet18"])
@pytest.mark.parametrize("method", ["fedproc", "scaffold"])
def test_sites_on_a_gpu_train_what_sites_on_a_cpu_train(tmp_path: Path, method: str, network: str) -> None:
    given = {"method": method, "network": network, "width": 8, "rounds": 2}
    ends = {}
    for device in ("cpu", "cuda"):
        place = Place(tmp_path / device, device=device)
        outcome, driver = place.play(place.wire(), **given)
        assert outcome == "finished", place.said
        ends[device] = [record["train_loss"] for record in driver.records]
    assert ends["cuda"] == pytest.approx(ends["cpu"], rel=1e-6)


@pytest.mark.parametrize("method", ["fedper", "fedproto"])
def test_parts_of_a_model_stay_at_home(place: Place, method: str) -> None:
    given = {"method": method, "fedproto": {"models": "personal"}} if method == "fedproto" else {"method": method}
    outcome, driver = place.play(place.wire(), **given)
    assert outcome == "finished", place.said
    everything = write_all(place.data, place.folder / "all.csv")
    beside = run(simulated(everything, **given), place.folder / "simulated")
    assert [r["train_loss"] for r in driver.records] == [r["train_loss"] for r in beside.metrics]
    assert sites_of(place.folder / "runs/run") == sites_of(place.folder / "simulated")


@pytest.mark.parametrize("method", ["ditto", "fine-tuning"])
def test_own_models_are_tested_at_home(place: Place, method: str) -> None:
    given = {"method": method, "fine_tuning": {"tune_epochs": 2}} if method == "fine-tuning" else {"method": method}
    outcome, driver = place.play(place.wire(), options={"fine_tune": 1}, **given)
    assert outcome == "finished", place.said
    everything = write_all(place.data, place.folder / "all.csv")
    beside = run(simulated(everything, **given), place.folder / "simulated")
    expect_same_model(place.folder / "runs/run", place.folder / "simulated")
    here, there = driver.records[-1], beside.metrics[-1]
    assert [r["train_loss"] for r in driver.records] == [r["train_loss"] for r in beside.metrics]
    assert here["own_accuracy"] == pytest.approx(there["own_models"]["client_accuracy_mean"])
    assert sites_of(place.folder / "runs/run") == sites_of(place.folder / "simulated")
    assert len(driver.records) == (4 if method == "fine-tuning" else 3)
    assert not list((place.folder / "runs").glob("run-fine-tuned*"))  # sites have models of their own already


def test_classifiers_from_means_and_covariances_are_tested_at_the_sites(place: Place) -> None:
    given = {"method": "fedavg", "ccvr": "both", "rounds": 2}
    outcome, driver = place.play(place.wire(), **given)
    assert outcome == "finished", place.said
    everything = write_all(place.data, place.folder / "all.csv")
    beside = run(simulated(everything, **given), place.folder / "simulated")
    here, there = (r["final_models"] for r in (driver.records[-1], beside.metrics[-1]))
    assert {n: m["accuracy"] for n, m in here.items()} == {n: m["accuracy"] for n, m in there.items()}
    assert here and driver.records[-1]["closing"] == beside.metrics[-1]["closing"]


def test_a_segment_ends_and_the_next_continues_with_the_same_numbers(place: Place) -> None:
    whole, _ = place.play(place.wire(), run="whole", method="scaffold", rounds=4)
    wire = place.wire()

    def ending(message: Message, answer: Callable[[Message], Message] = wire.answers["a"]) -> Message:
        if kind_of(message) == "task" and codec.decode_task(message).round == 1:
            driver.end()
        return answer(message)

    wire.answers["a"] = ending

    driver = Driver(
        place.folder / "runs", "parts", experiment(method="scaffold", rounds=4), Options(alone=False, fine_tune=0),
        place.names, wire, place.said.append,
    )  # fmt: skip
    assert driver.play() == "ended"
    again, later = place.play(place.wire(), run="parts", method="scaffold", rounds=4)  # sites started anew
    assert (whole, again) == ("finished", "finished") and len(later.records) == 4
    expect_same_model(place.folder / "runs/whole", place.folder / "runs/parts")


def test_training_alone_stands_beside(place: Place) -> None:
    outcome, _ = place.play(place.wire(), options={"alone": True}, method="fedproc")
    assert outcome == "finished"
    everything = write_all(place.data, place.folder / "all.csv")
    solo = {"method": "solo", "solo": {"epochs": 6, "start": "same"}}
    run(simulated(everything, **solo), place.folder / "solo")
    alone = sites_of(place.folder / "runs/run-alone-3")
    assert len(alone) == 3 and alone == sites_of(place.folder / "solo")


def test_fine_tuning_stands_beside(place: Place) -> None:
    outcome, _ = place.play(place.wire(), options={"fine_tune": 2}, method="fedproc")
    assert outcome == "finished"
    everything = write_all(place.data, place.folder / "all.csv")
    together = simulated(everything, method="fedproc")
    model = run(together, place.folder / "together").path
    assert model is not None
    run(fine_tuned(together, model / "model.safetensors", 2), place.folder / "tuned")
    found = sites_of(place.folder / "runs/run-fine-tuned-3x2")
    assert len(found) == 1 and found == sites_of(place.folder / "tuned")
    config = json.loads((place.folder / "runs/run-fine-tuned-3x2/config.json").read_text())
    assert config["start_from_sha256"] == file_hash(model / "model.safetensors")


def test_batches_and_epochs_follow_the_sites_images(place: Place) -> None:
    """Sites of some twenty images each: two batches of 8, and ten epochs make twenty steps."""
    options = {"following": ["batch_size", "epochs"]}
    outcome, _ = place.play(place.wire(), options=options, method="fedavg", rounds=1, batch_size=64, epochs=1)
    assert outcome == "finished"
    config = json.loads((place.folder / "runs/run/config.json").read_text())
    sizes = [sum(row) for row in json.loads((place.folder / "runs/run/partition.json").read_text())["counts"]]
    assert config["batch_size"] == batch_size_for(sizes) == 8
    assert config["epochs"] == epochs_for(sizes, 8, 1) > 1
    record = json.loads((place.folder / "runs/run/metrics.jsonl").read_text().splitlines()[0])
    steps = [size // 8 * 8 * config["epochs"] for size in sizes]
    assert record["samples"] == sum(steps)


def test_a_silent_site_costs_one_timeout_and_is_not_asked_again(place: Place) -> None:
    wire = place.wire()

    def fall_silent(message: Message, answer: Callable[[Message], Message] = wire.answers["b"]) -> Message:
        return answer(message)

    wire.answers["b"] = fall_silent
    asked_before: list[int] = []

    def watch(message: Message, answer: Callable[[Message], Message] = wire.answers["a"]) -> Message:
        if kind_of(message) == "task" and codec.decode_task(message).round == 1:
            wire.silent.add("b")
            asked_before.append(sum(site == "b" for site, _ in wire.asked))
        return answer(message)

    wire.answers["a"] = watch
    outcome, driver = place.play(wire, method="scaffold", rounds=4)
    assert outcome == "finished"
    after = sum(site == "b" for site, _ in wire.asked) - asked_before[0]
    assert after <= 1  # the one timeout
    assert [record["clients"] for record in driver.records][-1] == 2
    assert driver.records[-1]["refused"] == {"1": "away: no answer within 600 s, in round 2"}
    assert driver.shown()["sites"]["b"]["state"] == "away"
    # it is back in the next segment, with what it kept
    again, later = place.play(place.wire(), method="scaffold", rounds=6)
    assert again == "finished" and later.records[-1]["clients"] == 3


def changed(change: Callable[[Payload], Payload]) -> Callable[[Message], Message]:
    """An answer to training with something wrong in it."""

    def alter(message: Message) -> Message:
        reply = codec.decode_reply(message)
        assert reply.payload is not None
        return codec.encode_reply(replace(reply, payload=change(reply.payload)))

    return alter


def with_tensor(name: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Message], Message]:
    return changed(lambda payload: Payload({**payload.tensors, name: make(payload.tensors[name])}, payload.counts))


def with_more(numbers: int) -> Callable[[Message], Message]:
    return changed(lambda payload: Payload({**payload.tensors, "more": torch.zeros(numbers)}, payload.counts))


def without(tensors: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    return {other: tensor for other, tensor in tensors.items() if other != name}


def _filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def fill(tensor: torch.Tensor) -> torch.Tensor:
        other = tensor.clone()
        other.view(-1)[0] = value
        return other

    return fill


WRONG: dict[str, tuple[Callable[[Message], Message], str]] = {
    "NaN": (with_tensor("params", _filled(float("nan"))), "params is not finite"),
    "infinity": (with_tensor("class_means", _filled(float("inf"))), "class_means is not finite"),
    "wrong shape": (with_tensor("params", lambda t: t[:-1]), "params has shape"),
    "broadcastable shape": (with_tensor("params", lambda t: t[:1]), "params has shape"),
    "another axis": (with_tensor("params", lambda t: t[None]), "params has shape"),
    "wrong dtype": (with_tensor("params", lambda t: t.to(torch.float16)), "params is torch.float16"),
    "missing name": (
        changed(lambda p: Payload({k: v for k, v in p.tensors.items() if k != "params"}, p.counts)),
        "missing",
    ),
    "extra name": (
        changed(lambda p: Payload({**p.tensors, "gift": torch.ones(1)}, p.counts)),
        "not asked for ['gift']",
    ),
    "negative count": (changed(lambda p: Payload(p.tensors, {**p.counts, "steps": -1})), "steps is -1"),
    "absurd count": (changed(lambda p: Payload(p.tensors, {**p.counts, "steps": 1 << 60})), "expected a count"),
    "another count": (changed(lambda p: Payload(p.tensors, {**p.counts, "samples": 7})), "samples is 7, expected"),
    "negative class counts": (with_tensor("class_counts", lambda t: -t - 1), "class_counts holds a count below 0"),
    "oversized": (
        changed(lambda p: Payload({**p.tensors, "big": torch.zeros(1 << 22)}, p.counts)),
        "not asked for ['big']",
    ),
    "no tensors": (lambda m: Message(m.head, b"\x00" * 64), "tensors cannot be read"),
    "no message": (lambda m: Message(b"{", b""), "not a message"),
    "another message": (lambda m: tell(Invitation(run="x", experiment={})), "expected a reply"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_a_wrong_answer_is_refused_and_the_round_goes_on(place: Place, what: str) -> None:
    alter, reason = WRONG[what]
    honest = place.trainer("b").answer

    def hostile(message: Message) -> Message:
        answer = honest(message)
        if kind_of(message) == "task" and codec.decode_task(message).kind is Kind.TRAIN:
            return alter(answer)
        return answer

    outcome, driver = place.play(place.wire(b=hostile), method="fedproc", rounds=2)
    assert outcome == "finished"
    for record in driver.records:
        assert record["clients"] == 2 and reason in record["refused"]["1"], record["refused"]
    assert any("site b is refused" in line and reason in line for line in place.said)
    assert all(
        torch.isfinite(t.double()).all() for t in load_file(place.folder / "runs/run/model.safetensors").values()
    )


def test_too_few_good_answers_repeat_the_round_and_then_stop_with_everything_kept(place: Place) -> None:
    trainers = {name: place.trainer(name) for name in place.names}
    broken = {"from": 1}

    def failing(name: str) -> Callable[[Message], Message]:
        def answer(message: Message) -> Message:
            if kind_of(message) == "task":
                task = codec.decode_task(message)
                if task.kind is Kind.TRAIN and task.round >= broken["from"]:
                    return codec.encode_reply(Reply(None, "the disk is full"))
            return trainers[name].answer(message)

        return answer

    wire = place.wire(b=failing("b"), c=failing("c"))
    outcome, driver = place.play(wire, rounds=3, options={"min_sites": 2})
    assert outcome == "too few sites" and len(driver.records) == 1
    assert sum("is repeated" in line for line in place.said) == 1
    assert any("the disk is full" in line for line in place.said)
    broken["from"] = 99
    outcome, driver = place.play(wire, rounds=3, options={"min_sites": 2})
    assert outcome == "finished" and [record["round"] for record in driver.records] == [1, 2, 3]
    place.play(place.wire(), run="whole", rounds=3)
    expect_same_model(place.folder / "runs/run", place.folder / "runs/whole")


def test_sites_that_cannot_take_part_are_left_out_and_told_why(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    write_site(place.folder / "images/b", 1, (*CLASSES, "fox"))
    outcome, driver = place.play(place.wire(), options={"classes": list(CLASSES)})
    assert outcome == "finished" and driver.records[0]["clients"] == 2
    away = driver.shown()["sites"]["b"]
    assert away["reason"] == "it has images of fox, which is none of the classes bird, cat, dog, eel"
    assert "declined: it has images of fox" in (place.kit("b") / "fedproc.log").read_text()


def test_another_version_is_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    old = place.trainer("c")

    def answer(message: Message) -> Message:
        with monkeypatch.context() as patch:
            patch.setattr(trainers, "__version__", "0.0.9")
            return old.answer(message)

    outcome, driver = place.play(place.wire(c=answer))
    assert outcome == "finished" and driver.records[0]["clients"] == 2
    assert "it has fedproc 0.0.9, the server" in driver.shown()["sites"]["c"]["reason"]


def test_classes_that_look_alike_are_asked_about(place: Place) -> None:
    write_site(place.folder / "images/c", 2, ("bird", "Cat"))
    with pytest.raises(RunError, match="classes Cat and cat, which look alike"):
        place.play(place.wire())


def test_a_site_joins_a_run_under_way(place: Place) -> None:
    wire = place.wire()
    del wire.answers["c"]
    outcome, _ = place.play(wire, members=["a", "b"], rounds=2, method="scaffold")
    assert outcome == "finished"
    outcome, driver = place.play(place.wire(), rounds=4, method="scaffold")
    assert outcome == "finished"
    assert [record["clients"] for record in driver.records] == [2, 2, 3, 3]
    partition = json.loads((place.folder / "runs/run/partition.json").read_text())
    assert partition["client_names"] == ["a", "b", "c"]


def test_a_removed_site_is_not_asked_and_the_run_goes_on(place: Place) -> None:
    place.play(place.wire(), rounds=1, method="scaffold")
    outcome, driver = place.play(place.wire(), members=["a", "b"], rounds=2, method="scaffold")
    assert outcome == "finished" and driver.records[-1]["clients"] == 2
    assert driver.records[-1]["refused"] == {"2": "no longer a member"}


def test_a_site_with_another_number_of_images_is_left_out_and_nobody_else(place: Place) -> None:
    place.play(place.wire(), rounds=1, method="fedavg")
    write_site(place.folder / "images/b", 8)
    shutil.rmtree(place.kit("b") / "state")  # so that it does not notice itself
    for rounds in (2, 3):
        outcome, driver = place.play(place.wire(), rounds=rounds, method="fedavg")
        assert outcome == "finished" and driver.records[-1]["clients"] == 2
        assert "training images, had" in driver.shown()["sites"]["b"]["reason"]


@pytest.mark.parametrize("method", ["fedper", "scaffold"])
def test_an_absent_site_stops_nothing_and_alone_is_the_same_for_the_others(place: Place, method: str) -> None:
    given = {"method": method, "rounds": 3}
    wire = place.wire()

    def watch(message: Message, answer: Callable[[Message], Message] = wire.answers["c"]) -> Message:
        if kind_of(message) == "task" and codec.decode_task(message).round == 1:
            wire.silent.add("a")
        return answer(message)

    wire.answers["c"] = watch
    outcome, driver = place.play(wire, options={"alone": True, "min_sites": 1}, **given)
    assert outcome == "finished", place.said
    assert [len(record["took_part"]) for record in driver.records] == [3, 2, 2]
    alone = [json.loads(line) for line in (place.folder / "runs/run-alone-3/metrics.jsonl").read_text().splitlines()]
    assert [record["took_part"] for record in alone] == [[1, 2]] * 3  # b and c, each in all rounds it spent together


BAD_HEADS: dict[str, dict[str, object]] = {
    "an absurd time": {"seconds": {"train": 10**400}},
    "counts that are a list": {"counts": ["samples", "steps"]},
    "no counts": {"counts": None},
    "a reason that is a number": {"refused": 3},
    "neither answered nor not": {"answered": "yes"},
}


@pytest.mark.parametrize("what", list(BAD_HEADS))
def test_a_malformed_reply_ends_nothing(place: Place, what: str) -> None:
    honest = place.trainer("b").answer

    def hostile(message: Message) -> Message:
        answer = honest(message)
        if kind_of(message) != "task":
            return answer
        return replace(answer, head=json.dumps({**json.loads(answer.head), **BAD_HEADS[what]}).encode())

    outcome, driver = place.play(place.wire(b=hostile), method="fedavg", rounds=1)
    assert outcome == "finished"
    assert driver.records[0]["clients"] == (3 if what == "an absurd time" else 2)


def test_counts_of_an_evaluation_that_contradict_each_other_are_refused(place: Place) -> None:
    honest = place.trainer("b").answer

    def hostile(message: Message) -> Message:
        answer = honest(message)
        if kind_of(message) == "task" and codec.decode_task(message).kind is Kind.EVALUATE:
            return changed(lambda p: Payload({**p.tensors, "confusion": p.tensors["confusion"] + 2**40}, p.counts))(
                answer
            )
        return answer

    outcome, driver = place.play(place.wire(b=hostile), method="fedavg", rounds=1)
    assert outcome == "finished" and 0 <= driver.records[0]["test_accuracy"] <= 1
    assert "confusion holds" in driver.shown()["sites"]["b"]["reason"]


def test_a_site_gives_what_the_run_needs_and_no_more(place: Place) -> None:
    asked: list[Message] = []
    honest = place.trainer("a").answer

    def listen(message: Message) -> Message:
        asked.append(message)
        return honest(message)

    place.play(place.wire(a=listen), method="fedavg", rounds=1)
    train = codec.decode_task(next(m for m in asked if kind_of(m) == "task"))
    late = honest(codec.encode_task(replace(train, round=50)))
    assert b"asked about round 51 of 1" in late.head
    assert b"asked about round 2 of 1" in honest(codec.encode_task(replace(train, round=1))).head
    means = honest(codec.encode_task(replace(train, kind=Kind.CLASS_MEANS, means="clean", phases=())))
    assert b"asked for class means, which fedavg does not need" in means.head
    counts = honest(codec.encode_task(replace(train, kind=Kind.CLASS_COUNTS, phases=())))
    assert b"asked for class counts, which the run does not need" in counts.head


def test_the_policy_of_a_site_is_its_own(place: Place) -> None:
    (place.kit("a") / "policy.toml").write_text('methods = ["fedavg"]\n')
    (place.kit("b") / "policy.toml").write_text("max_rounds = 2\n")
    (place.kit("c") / "policy.toml").write_text("smallest_class = 12\n")
    outcome, driver = place.play(place.wire())
    assert outcome == "too few sites"
    reasons = {site: one["reason"] for site, one in driver.shown()["sites"].items()}
    assert reasons == {
        "a": "its policy allows fedavg, not fedproc",
        "b": "its policy allows 2 rounds, not 3",
        "c": "its policy wants --smallest-class 12 or more, the run has 5",
    }
    (place.kit("a") / "policy.toml").write_text("metods = 1\n")
    _, driver = place.play(place.wire())
    assert driver.shown()["sites"]["a"]["reason"].endswith("its log says why")
    assert "metods 1: expected one of methods, max_rounds" in (place.kit("a") / "fedproc.log").read_text()


@pytest.mark.parametrize("run", ["../../elsewhere", "/tmp/elsewhere", "", "A b"])
def test_a_server_cannot_name_a_folder_outside(place: Place, run: str) -> None:
    asked = {"what": "invitation", "version": "0.1.0", "run": run, "experiment": {}}
    answer = place.trainer("a").answer(Message(json.dumps(asked).encode()))
    assert kind_of(answer) == "declined" and b"run: String should match" in answer.head


def test_a_server_cannot_have_a_module_imported(place: Place) -> None:
    outcome, driver = place.play(place.wire(), network="toy_networks:Tiny")
    assert outcome == "too few sites"
    assert all("its policy names no network" in one["reason"] for one in driver.shown()["sites"].values())


def test_a_prototype_of_a_small_class_is_not_sent_in_either_world(place: Place) -> None:
    given = {"method": "fedproc", "smallest_class": 14}
    outcome, _ = place.play(place.wire(), **given)
    assert outcome == "finished"
    everything = write_all(place.data, place.folder / "all.csv")
    run(simulated(everything, **given), place.folder / "simulated")
    expect_same_model(place.folder / "runs/run", place.folder / "simulated")
    partition = json.loads((place.folder / "runs/run/partition.json").read_text())
    assert 0 in partition["counts"][0] and all(
        count == 0 or count >= 14 for row in partition["counts"] for count in row
    )


def test_the_audit_log_names_what_left_and_nothing_of_its_values(place: Place) -> None:
    place.play(place.wire(), method="scaffold", rounds=1)
    lines = place.audit("a")
    assert [line["what"] for line in lines] == ["joined", "seen", "ready", "train", "evaluate"]
    train = lines[3]
    assert train["round"] == 1 and set(train["tensors"]) >= {"params", "buffers", "losses"}
    assert train["counts"]["samples"] > 0 and train["bytes"] > 8 * train["tensors"]["params"][1][0]
    text = (place.kit("a") / "audit.jsonl").read_text()
    assert "test-" not in text and str(place.folder) not in text  # no name of a file


def test_diagnostics_can_be_kept_at_home(place: Place) -> None:
    for name in place.names:
        (place.kit(name) / "policy.toml").write_text("diagnostics = false\n")
    outcome, _ = place.play(place.wire(), method="fedavg", rounds=1)
    assert outcome == "finished"
    for name in place.names:
        train = next(line for line in place.audit(name) if line["what"] == "train")
        assert "class_means" not in train["tensors"] and "class_counts" not in train["tensors"]


def test_a_lost_state_is_said_and_not_guessed(place: Place) -> None:
    outcome, _ = place.play(place.wire(), method="scaffold", rounds=2)
    assert outcome == "finished"
    shutil.rmtree(place.kit("b") / "state")
    outcome, driver = place.play(place.wire(), method="scaffold", rounds=3)
    assert outcome == "finished"
    assert "it has lost what it kept after round 2" in driver.records[-1]["refused"]["1"]


def test_changed_images_end_a_sites_part(place: Place) -> None:
    place.play(place.wire(), rounds=1, method="fedavg")
    write_site(place.folder / "images/b", 7)
    outcome, driver = place.play(place.wire(), rounds=2, method="fedavg")
    assert outcome == "finished" and driver.records[-1]["clients"] == 2
    assert driver.shown()["sites"]["b"]["reason"].startswith("its images have changed since the run began")


def test_what_may_name_files_stays_at_the_site(place: Place) -> None:
    (place.folder / "images/b/train-cat-0.png").write_bytes(b"no image")
    outcome, driver = place.play(place.wire(), rounds=1)
    assert outcome == "finished" and driver.records[0]["clients"] == 2
    assert str(place.folder) not in json.dumps(driver.shown()) + "".join(place.said)
    assert "train-cat-0.png: not a readable image" in (place.kit("b") / "fedproc.log").read_text()


def test_the_server_may_have_test_images_of_its_own(place: Place) -> None:
    test = place.folder / "server-test"
    for name in CLASSES:
        (test / name).mkdir(parents=True)
        for path in sorted((place.folder / "images/a").glob(f"test-{name}-*.png")):
            Image.open(path).save(test / name / path.name)
    outcome, driver = place.play(place.wire(), options={"server_test": str(test)}, rounds=2)
    assert outcome == "finished"
    there = sites_of(place.folder / "runs/run")[-1]["a"]
    assert driver.records[-1]["test_accuracy"] == sum(there["correct"]) / sum(there["total"])
    assert "auc" in driver.records[-1]  # which sites' counts cannot tell


def test_validation_splits_are_the_simulators(place: Place) -> None:
    given = {"method": "fedavg", "val_fraction": 0.3, "rounds": 2}
    outcome, driver = place.play(place.wire(), **given)
    assert outcome == "finished"
    everything = write_all(place.data, place.folder / "all.csv")
    beside = run(simulated(everything, **given), place.folder / "simulated")
    assert [r["val_accuracy"] for r in driver.records] == [r["val_accuracy"] for r in beside.metrics]


def test_a_plugin_must_be_at_the_site_and_be_the_same(place: Place, tmp_path: Path) -> None:
    source = (
        "from fedproc.methods.fedavg import FedAvg\n\n\nclass Mine(FedAvg):\n    name = 'mine'\n    summary = 'x'\n"
    )
    own, other = tmp_path / "mine.py", tmp_path / "other.py"
    own.write_text(source)
    other.write_text(source + "# changed\n")
    wire = LocalWire(
        {
            "a": place.trainer("a", plugins=[own]).answer,
            "b": place.trainer("b", plugins=[other]).answer,
            "c": place.trainer("c").answer,
        }
    )
    outcome, driver = place.play(wire, method="mine", plugin=[own], rounds=1, options={"min_sites": 1})
    assert outcome == "finished" and driver.records[0]["clients"] == 1
    sites = driver.shown()["sites"]
    assert "is not the server's (another SHA-256)" in sites["b"]["reason"]
    assert "mine" in sites["c"]["reason"]
