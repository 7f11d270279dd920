"""Hostile clients: what they do, that all executors have the same, and that robust merges withstand them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from conftest import ToyLibrary, Train, contents, toy_experiment, toy_images, toy_session, typed, work
from torch import Tensor

from fedproc.attacks import ATTACKS, HostileClient, flipped_labels, hostile_clients, swapped
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.protocol.guard import Expected
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Task
from fedproc.report.gather import gather
from fedproc.report.notes import hostile
from fedproc.simulation.session import Session

START = {"params": torch.tensor([1.0, 2.0, 3.0]), "buffers": torch.ones(2), "counters": torch.zeros(1).long()}
ANSWER = {
    "params": torch.tensor([2.0, 0.0, 3.5]),
    "buffers": torch.tensor([5.0, 6.0]),
    "counters": torch.tensor([4]),
    "losses": torch.tensor([0.5]),
    "control_change": torch.tensor([1.0, -1.0, 2.0]),
    "class_means": torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.0, 0.0]]),
    "class_counts": torch.tensor([2, 1, 0]),
}


def attacked(
    attack: str, strength: float, answer: dict[str, Tensor] = ANSWER, seed: int = 0, client: int = 3, **more: object
) -> dict[str, Tensor]:
    given: dict[str, object] = {"kind": Kind.TRAIN, "expects": Expected({}), **more}
    task = Task(client=client, round=0, payload=Payload(START), **given)  # type: ignore[arg-type]
    return dict(HostileClient(ATTACKS[attack], strength, seed).at_client(task, Payload(answer)).tensors)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    return {name for name in one if torch.equal(one[name], other[name])}


def test_signs_flipped_twice_or_moves_scaled_by_one_are_as_they_were() -> None:
    once = attacked("sign-flip", 1.0)
    assert once["params"].tolist() == [0.0, 4.0, 2.5] and once["control_change"].tolist() == [-1.0, 1.0, -2.0]
    assert same(once, ANSWER) == {"buffers", "counters", "losses", "class_counts"}
    assert same(attacked("sign-flip", 1.0, once), ANSWER) == set(ANSWER)
    assert same(attacked("scaling", 1.0), ANSWER) == set(ANSWER)
    assert attacked("scaling", 3.0)["params"].tolist() == [4.0, -4.0, 4.5]


def test_noise_is_as_long_as_it_is_said_to_be_and_everybodys_own() -> None:
    many = {"params": torch.zeros(4000)}
    task = Task(Kind.TRAIN, 1, 2, Payload({**START, "params": torch.full((4000,), 0.5)}), Expected({}))
    noisy = HostileClient(ATTACKS["noise"], 3.0, 0).at_client(task, Payload(many)).tensors["params"]
    assert float(noisy.norm() / many["params"].sub(0.5).norm()) == pytest.approx(3.0, rel=0.05)
    found = [
        attacked("noise", 1.0, seed=seed, client=client)["params"] for seed, client in ((0, 3), (0, 3), (0, 4), (1, 3))
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2]) and not torch.equal(found[0], found[3])


def test_poisoned_prototypes_are_another_classs() -> None:
    found = attacked("prototype-poisoning", 2.0)
    assert found["class_means"].tolist() == [[0.0, 6.0], [2.0, 0.0], [0.0, 0.0]]
    assert same(found, ANSWER) == set(ANSWER) - {"class_means"}
    alone = swapped(torch.tensor([[1.0], [0.0]]), torch.tensor([4, 0]))
    assert alone.tolist() == [[-1.0], [0.0]]


def test_what_only_observes_and_evaluations_are_left_alone() -> None:
    observed = Expected({}, observe=frozenset({"class_means", "class_counts"}))
    assert "class_means" in same(attacked("sign-flip", 1.0, expects=observed), ANSWER)
    assert same(attacked("sign-flip", 1.0, kind=Kind.EVALUATE), ANSWER) == set(ANSWER)


def test_labels_are_flipped_where_hostile_clients_hold_them() -> None:
    labels = torch.tensor([0, 1, 2, 3])
    flipped = flipped_labels(labels, [torch.tensor([1, 3])], 4)
    assert flipped.tolist() == [0, 2, 2, 0]
    assert flipped_labels(flipped, [torch.tensor([1, 3])], 4).tolist() == labels.tolist()
    library, attack = ToyLibrary(toy_images()), {"attack": "label-flip", "attackers": 0.4}
    honest, again, flipping = (Session(toy_experiment(**more), library) for more in ({}, {}, attack))
    for client in range(5):
        one, other = (session.clients[client].class_counts.tolist() for session in (honest, flipping))
        assert (other == one[::-1]) == (client in flipping.hostile) and len(flipping.hostile) == 2
    assert torch.equal(honest.held_out.labels, flipping.held_out.labels)
    assert honest.setting.pool == again.setting.pool != flipping.setting.pool


def test_hostile_clients_of_a_smaller_share_are_among_those_of_a_larger() -> None:
    sets = [set(hostile_clients(share, 10, 7)) for share in (0.1, 0.2, 0.4, 0.9)]
    assert [len(each) for each in sets] == [1, 2, 4, 9]
    assert all(small < large for small, large in pairwise(sets))
    assert set(hostile_clients(0.4, 10, 8)) != sets[2]


@pytest.mark.parametrize("attack", ATTACKS)
def test_executors_agree_on_an_attack_and_a_robust_merge(train: Train, attack: str) -> None:
    given = {"method": "scaffold+fedproc", "attack": attack, "attackers": 0.4, "merge": "median", "dtype": "float64"}
    images = toy_images(absent=2)
    serial, stacked = train(images, "serial", 1, lr=0.01, **given), train(images, "stacked", 3, lr=0.01, **given)
    for of in (lambda s: s.state.weights.params, lambda s: s.state.method["prototypes"]):
        assert float((of(serial) - of(stacked)).norm() / of(serial).norm()) < 1e-9
    assert distance(serial, train(images, lr=0.01, **{**given, "attack": None, "attackers": None})) > 1e-6


def distance(one: Session, other: Session) -> float:
    return float((one.state.weights.params - other.state.weights.params).norm())


def test_a_run_with_hostile_clients_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    given = {"attack": "noise", "attackers": 0.4, "merge": "trimmed-mean", "trimmed-mean": {"trim": 0.3}}
    work(tmp_path / "whole", fedproc={"alpha": 0.5}, **given)
    work(tmp_path / "parts", rounds=2, fedproc={"alpha": 0.5}, **given)
    session = work(tmp_path / "parts", fedproc={"alpha": 0.5}, **given)
    one, other = contents(tmp_path / "whole"), contents(tmp_path / "parts")
    assert one["metrics.jsonl"] == other["metrics.jsonl"] and one["model.safetensors"] == other["model.safetensors"]
    assert Experiment(**session.experiment.config()) == session.experiment
    (noted,) = hostile(gather([tmp_path / "whole"]).groups[0])
    assert "2 of 5 clients hostile: noise (adds Gaussian noise to its move, 10 times as long as the move)" in noted
    assert "fedproc with --merge trimmed-mean" in noted
    with pytest.raises(InputError, match=r"trimmed_mean.trim 0.2: the run in .* has 0.3"):
        work(tmp_path / "whole", fedproc={"alpha": 0.5}, **{**given, "trimmed-mean": {"trim": 0.2}})


@pytest.mark.parametrize("merge", ["mean", "median"])
def test_poisoned_prototypes_pass_through_the_mean_alone(train: Train, merge: str) -> None:
    given = {"method": "fedproc", "merge": merge, "partition": "iid", "rounds": 1}
    plain = train(**given).state.method["prototypes"]
    poisoned = train(attack="prototype-poisoning", attackers=0.4, **given).state.method["prototypes"]
    away = float((poisoned - plain).norm() / plain.norm())
    assert (away < 0.3) if merge == "median" else (away > 3)


def test_an_answer_that_is_not_finite_is_refused_and_the_others_agree(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: HostileClient, task: Task, payload: Payload) -> Payload:
        return Payload({name: tensor * torch.nan for name, tensor in payload.tensors.items()}, payload.counts)

    monkeypatch.setattr(HostileClient, "at_client", broken)
    session = train(method="fedavg", attack="sign-flip", attackers=0.4, merge="krum")
    assert [len(record["refused"]) for record in session.records] == [2, 2]
    assert torch.isfinite(session.state.weights.params).all()


REFUSED = {
    "--attack sign-flip": "needs --attackers",
    "--attackers 0.2": "needs --attack",
    "--attack-strength 2": "needs --attack",
    "--attack label-flip --attackers 0.2 --attack-strength 2": "label-flip has none",
    "--attack sign-flop --attackers 0.2": "sign-flip?",
    "--attack noise --attackers 1": "expected a number below 1",
    "--attack noise --attackers 0.01": "of 10 clients that is nobody",
    "--attack noise --attackers 0.99": "of 10 clients that is everybody",
    "--attack prototype-poisoning --attackers 0.2 --method fedavg": "asks clients for no class means",
    "--attack noise --attackers 0.2 --method solo": "solo merges nothing",
    "--merge median --method fednova": "it is FedAvg but for",
    "--merge median --method feddyn": "must stay the mean",
    "--merge median --method feddc": "must stay the mean",
    "--merge median --method fpl": "clusters",
    "--merge krum --ccvr lda": "--ccvr pools",
    "--merge krum --class-weights balanced": "take own",
    "--merge krum --fedproc.weighting count": "--fedproc.weighting uniform",
    "--merge krum --krum.hostile 4": "needs 2f + 3 = 11 clients per round at least, and there are 10; of 10, 3 may be",
    "--merge krum --krum.hostile 2 --sample 0.5": "needs 2f + 3 = 7 clients per round at least, and there are 5",
    "--merge krum --krum.hostile -1": "expected at least 0",
    "--merge trimmed-mean --trimmed-mean.trim 0.5": "expected a number below 0.5",
    "--merge median --trimmed-mean.trim 0.1": "has no effect: what runs is median; leave it out",
    "--krum.hostile 1": "has no effect: what runs is mean; leave it out",
    "--merge medain": "median?",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_made(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = typed(f"run {words} --rounds 1 --out {tmp_path / 'run'}", capsys)
    assert code == 2 and REFUSED[words] in " ".join(err.split()), err
    assert not (tmp_path / "run").exists()


def test_a_plugin_says_what_it_averages(train: Train) -> None:
    from fedproc.methods.fedavg import FedAvg

    class Returns(FedAvg):
        name = "returns-more"

        def returns(self, params, dtype):  # type: ignore[no-untyped-def]
            return {"more": ((params,), dtype)}

    with pytest.raises(InputError, match="returns-more returns more, of which its `averages` does not say"):
        toy_session(method=Returns, merge="median")
    assert toy_experiment(method=Returns, merge="mean").rule is None
