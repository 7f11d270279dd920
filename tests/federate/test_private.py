"""A private federation: sites clip, the server or the sites add noise, and nothing else is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from places import CLASSES, Place, experiment, simulated, write_all, write_server_test
from safetensors.torch import load_file

from fedproc.errors import InputError
from fedproc.federate.joining import kind_of
from fedproc.federate.policy import Policy
from fedproc.federate.state import Answered
from fedproc.privacy.client import own_noise
from fedproc.privacy.options import PrivacyOptions
from fedproc.protocol.codec import Message
from fedproc.protocol.guard import Refused
from fedproc.runs.saved import read_run
from fedproc.simulation.drive import run

PRIVACY = {"noise": 0.2, "clip": 0.5, "random": "seeded"}
GIVEN = {"method": "fedproc", "normalize": "known", "rounds": 2, "calibrate": 1.0}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def with_test_images(place: Place) -> dict[str, Any]:
    """Options with test images at the server."""
    folder = write_server_test(place.folder / "images/a", place.folder / "server-test")
    return {"server_test": str(folder), "classes": list(CLASSES)}


@pytest.mark.parametrize("privacy", [PRIVACY, {**PRIVACY, "where": "client", "clipping": "adaptive"}])
def test_sites_train_what_the_simulator_trains_and_tell_nothing_else(place: Place, privacy: dict[str, Any]) -> None:
    outcome, driver = place.play(place.wire(), options=with_test_images(place), privacy=privacy, **GIVEN)
    assert outcome == "finished", place.said
    everything = write_all(place.data, place.folder / "all.csv")
    done = run(simulated(everything, privacy=privacy, **GIVEN), place.folder / "simulated")
    one, other = (load_file(place.folder / name / "model.safetensors") for name in ("runs/run", "simulated"))
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert [r["epsilon"] for r in driver.records] == [r["epsilon"] for r in done.metrics]
    assert any("privacy: epsilon" in line for line in place.said)
    saved = read_run(place.folder / "runs/run")
    assert saved is not None and saved.result["privacy"]["noise"] == 0.2
    assert saved.partition is not None and not saved.partition[1].any()  # nobody told what it has
    assert not (place.folder / "runs/run/sites.jsonl").exists()
    told = {"update", "unclipped"} if privacy.get("clipping") else {"update"}
    for name in place.names:
        lines = place.audit(name)
        assert {line["what"] for line in lines} == {"joined", "seen", "ready", "train"}
        for line in lines:
            if line["what"] == "train":
                assert set(line["tensors"]) == told and line["counts"] == {}
            elif line["what"] == "seen":
                assert not any((*line["sums"], *line["squares"], *line["counts"])) and line["pixels"] == 1
            elif line["what"] == "ready":
                assert line["samples"] == 1
            else:
                assert line["classes"] == list(CLASSES)


def test_before_the_rounds_all_sites_say_the_same(place: Place) -> None:
    """Whatever images they have: the very bytes are compared."""
    said: dict[str, list[bytes]] = {}

    def listening(name: str) -> Any:
        answer = place.trainer(name).answer

        def listen(message: Message) -> Message:
            found = answer(message)
            if kind_of(message) != "task":
                said.setdefault(kind_of(message), []).append(found.head + found.body)
            return found

        return listen

    wire = place.wire(**{name: listening(name) for name in place.names})
    outcome, _ = place.play(wire, options=with_test_images(place), privacy=PRIVACY, **{**GIVEN, "rounds": 1})
    assert outcome == "finished", place.said
    assert set(said) == {"invitation", "look", "agreed"}
    assert all(len(each) == 3 and len(set(each)) == 1 for each in said.values())


def test_a_private_federation_needs_classes_and_test_images_of_the_server(place: Place) -> None:
    with pytest.raises(InputError, match=r"server.test"):
        place.play(place.wire(), options={"classes": list(CLASSES)}, privacy=PRIVACY, **GIVEN)
    options = {**with_test_images(place), "classes": None}
    outcome, _ = place.play(place.wire(), run="other", options=options, privacy=PRIVACY, **GIVEN)
    assert outcome == "too few sites" and any("needs --classes" in line for line in place.said)


def test_a_round_with_too_few_answers_is_not_repeated_and_who_is_asked_is_not_shown(place: Place) -> None:
    """Whether a round takes place is decided by who is there, before anybody is drawn."""
    wire = place.wire()
    honest = wire.answers["a"]

    def falls_silent(message: Message) -> Message:
        if kind_of(message) == "agreed":
            wire.silent |= {"b", "c"}  # who have answered this already
        return honest(message)

    wire.answers["a"] = falls_silent
    outcome, driver = place.play(wire, options=with_test_images(place), privacy=PRIVACY, **{**GIVEN, "rounds": 3})
    assert outcome == "too few sites" and len(driver.records) == 1
    assert "1 sites are there, fewer than --min-sites 2" in place.said
    assert not any("repeated" in line for line in place.said)
    assert [task for task in wire.asked if task == ("a", "task")] == [("a", "task")]
    site = driver.shown()["sites"]["a"]
    assert site["state"] == "ready" and site["answered"] == 0 and site["seconds"] == 0


def test_a_site_that_is_asked_again_says_the_very_same(place: Place) -> None:
    """Another draw of its noise would tell more of the same images."""
    privacy = {"noise": 1.0, "where": "client"}  # from the secure source
    trainer, answers = place.trainer("a"), []

    def twice(message: Message) -> Message:
        if kind_of(message) == "task":
            answers.append((trainer.answer(message), trainer.answer(message)))
            return answers[-1][0]
        return trainer.answer(message)

    outcome, _ = place.play(place.wire(a=twice), options=with_test_images(place), privacy=privacy, **GIVEN)
    assert outcome == "finished", place.said
    assert len(answers) == 2 and all(one == other for one, other in answers)
    assert answers[0][0] != answers[1][0]


def test_an_answer_to_an_earlier_round_is_not_given_again(tmp_path: Path) -> None:
    answered, message = Answered(tmp_path), Message(b"head", b"body")
    assert answered.again(4) is None
    answered.keep(4, message)
    assert Answered(tmp_path).again(4) == message and answered.again(5) is None
    with pytest.raises(Refused, match="has answered round 5"):
        answered.again(3)


def test_a_policy_can_demand_privacy(place: Place) -> None:
    given = {**GIVEN, "smallest_class": 5}
    policy = Policy(max_epsilon=8.0)
    plain = experiment(**{**given, "normalize": "measured"})
    assert policy.objection(plain) == "its policy wants a private run: --privacy.epsilon 8 or less"
    assert policy.objection(experiment(privacy={"epsilon": 8.0}, **given)) is None
    wants = "its policy wants epsilon 8 at most, the run has 9.00"
    assert policy.objection(experiment(privacy={"epsilon": 9.0}, **given)) == wants
    assert "8 at most, the run has" in str(policy.objection(experiment(privacy={"noise": 0.6}, **given)))
    assert policy.objection(experiment(privacy={"noise": 5.0}, **given)) is None
    assert "--privacy.delta 1e-05" in str(
        policy.objection(experiment(privacy={"epsilon": 1.0, "delta": 1e-3}, **given))
    )
    own = Policy(own_noise=0.5)
    assert "--privacy.where client" in str(own.objection(experiment(privacy={"noise": 1.0}, **given)))
    assert own.objection(experiment(privacy={"noise": 1.0, "where": "client"}, **given)) is None
    assert own.objection_to_noise(0.6) is None and "asked for 0.4" in str(own.objection_to_noise(0.4))
    for wary in (policy, own):
        seeded = {"epsilon": 1.0, "where": "client", "random": "seeded"}
        assert "noise that nobody can draw again" in str(wary.objection(experiment(privacy=seeded, **given)))
        assert wary.objection(experiment(privacy={**seeded, "random": "auto"}, **given)) is None
    assert Policy().objection(experiment(privacy=PRIVACY, **given)) is None


def test_a_sites_own_noise_is_that_of_all_it_sends() -> None:
    fixed, adaptive = (PrivacyOptions(noise=1.0, clipping=how) for how in ("fixed", "adaptive"))
    told = {"noise": 0.5, "count_noise": 0.25}
    assert own_noise(fixed, told) == 0.5 and own_noise(None, {}) == 0
    assert own_noise(adaptive, told) == pytest.approx(0.5 / 2**0.5)
    assert own_noise(adaptive, {**told, "count_noise": 0.0}) == 0
