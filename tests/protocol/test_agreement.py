"""Robust merging in the round loop: whatever answers are summed up to goes through the rule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedproc.methods.fedproc import FedProc
from fedproc.methods.method import Options
from fedproc.methods.robust import Median
from fedproc.methods.scaffold import Scaffold
from fedproc.protocol.agreement import Held
from fedproc.protocol.guard import Expected
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Task

sys.path.insert(0, str(Path(__file__).parent.parent / "methods"))
from quadratics import Client, World

MEDIAN = Median(Options())


def held(*answers: dict[str, Tensor], averages: tuple[str, ...] = ()) -> list[Payload]:
    found = Held(MEDIAN, {"params": torch.zeros(2)}, averages)
    for client, tensors in enumerate(answers):
        found.add(Task(Kind.TRAIN, client, 0, Payload({}), Expected({})), Payload(tensors, {"samples": client + 1}))
    return [agreed for _, _, agreed in found.agreed()]


def test_everybody_is_given_the_same_but_for_losses_and_counts() -> None:
    def answer(value: float) -> dict[str, Tensor]:
        kinds = {"params": torch.full((2,), value), "counters": torch.tensor([int(value)]), "control": torch.ones(1)}
        return {**kinds, "losses": torch.tensor([value])}

    found = held(*(answer(value) for value in (1.0, 900.0, 2.0, 3.0)), averages=("control",))
    assert [payload.tensors["params"].tolist() for payload in found] == [[2.5, 2.5]] * 4
    assert [payload.tensors["counters"].item() for payload in found] == [2] * 4
    assert [payload.tensors["losses"].item() for payload in found] == [1.0, 900.0, 2.0, 3.0]
    assert [payload.counts["samples"] for payload in found] == [1, 2, 3, 4]


def test_of_class_means_those_count_who_hold_the_class() -> None:
    def answer(means: list[list[float]], counts: list[int]) -> dict[str, Tensor]:
        return {"class_means": torch.tensor(means), "class_counts": torch.tensor(counts)}

    found = held(answer([[1.0], [0.0]], [5, 0]), answer([[2.0], [7.0]], [5, 1]), answer([[99.0], [0.0]], [5, 0]))
    assert found[0].tensors["class_means"].tolist() == [[2.0], [7.0]]


def test_what_only_observes_may_be_missing() -> None:
    whole = {"class_means": torch.tensor([[4.0]]), "class_counts": torch.tensor([1])}
    found = held(whole, {"class_means": torch.tensor([[9.0]])}, {"class_counts": torch.tensor([1])}, {})
    assert found[0].tensors["class_means"].item() == 4.0
    assert [set(payload.tensors) for payload in found[2:]] == [{"class_counts"}, set()]


def far(place: float) -> list[Client]:
    """Three clients near 0 and 2, and one who wants to be far away and says that it has most samples."""
    return [Client([1.0, 1.0], [b, b]) for b in (0.0, 2.0, 1.0)] + [Client([1.0, 1.0], [place, place], samples=1000)]


@pytest.mark.parametrize(("method", "state"), [(FedProc, "prototypes"), (Scaffold, "control")])
def test_neither_weights_nor_what_else_a_method_sums_follow_a_hostile_client(method: type, state: str) -> None:
    near, turned = (World(method, far(place), [1.0, 1.0], plan={"rule": MEDIAN}) for place in (3.0, 3e6))
    assert turned.path == near.path and max(map(max, turned.path)) < 3
    assert torch.allclose(turned.states[-1].method[state], near.states[-1].method[state])
    plain = World(method, far(3e6), [1.0, 1.0])
    assert not torch.allclose(plain.states[-1].method[state], turned.states[-1].method[state], atol=0.01)


def test_how_far_clients_drift_is_on_record_as_they_did() -> None:
    world = World(FedProc, far(1001.0), [1.0, 1.0], rounds=1, plan={"rule": MEDIAN}, options={"alpha": 0.0})
    assert world.records[0]["client_drift"] == pytest.approx((0.5 + 0.5 + 0 + 500) * 2**0.5 / 4)
