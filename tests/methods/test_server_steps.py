"""FedAdam, FedYogi and FedAdagrad, by hand and by their identities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import Train
from quadratics import Client, World

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedavgm import FedAvgM
from fedproc.methods.fedopt import FedAdagrad, FedAdam, FedYogi
from fedproc.methods.method import Method
from fedproc.methods.server_steps import SERVER_STEPS

CLIENTS = [Client([1.0], [0.0], samples=1, steps=1), Client([1.0], [4.0], samples=3, steps=2)]
# FedAvg of these: 1 -> 2.5625 (tests/methods/test_rivals.py); from w, A goes to w/2 and B to 4 + (w - 4)/4


def move(w: float) -> float:
    return 0.25 * w / 2 + 0.75 * (4 + (w - 4) / 4) - w


def flat(kind: type[Method], **given: Any) -> list[float]:
    return [point[0] for point in World(kind, CLIENTS, [1.0], **given).path]


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
@pytest.mark.parametrize("start", ["zero", "tau2"])
def test_two_rounds_by_hand(kind: type[Method], start: str) -> None:
    options = {"eta": 0.5, "beta": 0.5, "tau": 0.2, "start_v": start}
    options |= {} if kind is FedAdagrad else {"beta2": 0.75}
    w, m, v, expected = 1.0, 0.0, 0.04 if start == "tau2" else 0.0, []
    for _ in range(2):
        d = move(w)
        m = 0.5 * m + 0.5 * d
        if kind is FedAdagrad:
            v = v + d**2
        elif kind is FedAdam:
            v = 0.75 * v + 0.25 * d**2
        else:
            v = v - 0.25 * d**2 * math.copysign(1, v - d**2)
        w = w + 0.5 * m / (math.sqrt(v) + 0.2)
        expected.append(w)
    assert flat(kind, options=options) == pytest.approx(expected, rel=1e-12)


def test_yogi_and_adam_begin_alike() -> None:
    adam, yogi = (flat(kind, rounds=3, options={"eta": 0.5}) for kind in (FedAdam, FedYogi))
    assert adam[0] == pytest.approx(yogi[0], rel=1e-14) and abs(adam[2] - yogi[2]) > 1e-9


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
@pytest.mark.parametrize("beta", [0.9, 0.0])
def test_with_a_large_tau_it_is_fedavgm(kind: type[Method], beta: float) -> None:
    tau = 1e6
    found = flat(kind, rounds=5, options={"eta": tau / (1 - beta), "beta": beta, "tau": tau})
    other = flat(FedAvgM, rounds=5, options={"beta": beta}) if beta else flat(FedAvg, rounds=5)
    assert found == pytest.approx(other, rel=2e-5)


def test_the_steps_go_with_any_method(train: Train) -> None:
    own = train(method="fedadam", dtype="float64", fedadam={"eta": 0.02}).state.weights.params
    given = {"method": "fedavg", "server_step": "adam", "server_lr": 0.02, "dtype": "float64"}
    assert torch.equal(own, train(**given).state.weights.params)


def test_every_step_is_one_that_can_be_named() -> None:
    assert {kind.server_step for kind in (FedAdam, FedYogi, FedAdagrad)} == set(SERVER_STEPS) - {"replace", "momentum"}
