"""FedDyn and FedDC, by hand and by their identities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from conftest import Train
from quadratics import Client, World
from torch import Tensor

from fedproc.experiment import Experiment
from fedproc.methods.feddc import FedDC
from fedproc.methods.feddyn import FedDyn
from fedproc.methods.fedprox import FedProx
from fedproc.methods.method import Local, Method
from fedproc.methods.scaffold import Scaffold

FOUR = [Client([1.0, 0.5], [float(i), 1.0 - i], samples=1 + i, steps=1 + i) for i in range(4)]


def test_feddyn_by_hand() -> None:
    # Round 1, lr 0.5: A moves from 1 to 0.5, B to 2.5; D = (-0.5 + 1.5)/2 = 0.5 and the model is 1.5 + 0.5.
    # Round 2, alpha 0.5: A: 2 - 0.5 (2 + 0.5 * -0.5) = 1.125; B: 2 - 0.5 (-2 + 0.5 * 1.5) = 2.625; they moved by
    # -0.875 and 0.625, so D = 0.5 - 0.125 and the model is 1.875 + 0.375.
    world = World(FedDyn, [Client([1.0], [0.0]), Client([1.0], [4.0])], [1.0], options={"alpha": 0.5})
    assert [p[0] for p in world.path] == pytest.approx([2.0, 2.25])
    assert world.client_state(0, "moved") == pytest.approx([-0.5 - 0.875])
    assert world.client_state(1, "moved") == pytest.approx([1.5 + 0.625])


def test_alpha_is_shared_out_by_samples() -> None:
    # alpha 0.5 and sizes 1 and 3, mean 2: A has 1, B 1/3. Round 2 as above: D is 0.5 again, and the model 2.
    clients = [Client([1.0], [0.0]), Client([1.0], [4.0], samples=3)]
    world = World(FedDyn, clients, [1.0], options={"alpha": 0.5})
    a, b = 2 - 0.5 * (2 + 1 * -0.5), 2 - 0.5 * (-2 + 1.5 / 3)
    assert world.path[1][0] == pytest.approx((a + b) / 2 + 0.5 + (a - 2 + b - 2) / 2)
    equal = World(FedDyn, clients, [1.0], options={"alpha": 0.5, "equal": True})
    assert equal.path[1][0] == pytest.approx(2.25)


@pytest.mark.parametrize("kind", [FedDyn, FedDC])
def test_the_servers_sum_is_the_mean_of_the_clients(kind: type[Method]) -> None:
    world = World(kind, FOUR, [0.0, 0.0], rounds=7, momentum=0.5, plan={"sample": 0.5})
    found = [world.store.get(client) for client in range(4)]
    each = [state["moved"] if state is not None else torch.zeros(2, dtype=torch.float64) for state in found]
    assert sum(state is not None for state in found) > 2
    torch.testing.assert_close(world.states[-1].method["moved"], torch.stack(each).mean(dim=0), rtol=0, atol=1e-12)


class UniformProx(FedProx):
    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        return [1 / len(samples)] * len(samples)


def test_the_first_round_goes_twice_as_far_as_fedprox() -> None:
    prox = World(UniformProx, FOUR, [1.0, -1.0], rounds=1, options={"mu": 0.7})
    world = World(FedDyn, FOUR, [1.0, -1.0], rounds=1, options={"alpha": 0.7, "equal": True})
    start = torch.tensor([1.0, -1.0], dtype=torch.float64)
    mean = torch.tensor(prox.path[0], dtype=torch.float64)
    assert world.path[0] == pytest.approx((2 * mean - start).tolist(), abs=1e-12)


@pytest.mark.parametrize("equal", [False, True])
def test_different_clients_end_at_the_minimum_of_the_mean(equal: bool) -> None:
    clients = [Client([1.0], [0.0], samples=1, steps=8), Client([0.5], [4.0], samples=3, steps=8)]
    world = World(FedDyn, clients, [1.0], rounds=60, lr=0.3, options={"alpha": 0.5, "equal": equal})
    by = [1, 1] if equal else [1, 3]
    expected = by[1] * 0.5 * 4 / (by[0] * 1.0 + by[1] * 0.5)
    assert world.path[-1][0] == pytest.approx(expected, abs=1e-6)


def test_the_plain_mean_of_the_clients_is_evaluated_beside() -> None:
    world = World(FedDyn, [Client([1.0], [0.0]), Client([1.0], [4.0])], [1.0], options={"alpha": 0.5})
    other = world.made.method.final_models(world.states[-1].weights, world.states[-1].method)["clients_mean"]
    assert other.params.item() == pytest.approx(1.875)
    assert "clients_mean" in world.records[-1]["final_models"] and "final_models" not in world.records[0]


# FedDC


class WithoutVariates(FedDC):
    """FedDC whose control variates are kept and not used."""

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        unused = {"control": torch.zeros_like(local.sent["control"])}
        plain = Local(**{**vars(local), "sent": unused, "state": {**local.state, **unused}})
        return super().correct(gradient, plain)


def test_without_the_correction_it_is_feddyn() -> None:
    given: dict[str, Any] = {"rounds": 10, "momentum": 0.5, "plan": {"sample": 0.5}, "options": {"alpha": 0.3}}
    one, other = (World(kind, FOUR, [1.0, 1.0], **given) for kind in (FedDyn, WithoutVariates))
    for here, there in zip(one.path, other.path, strict=True):
        assert here == pytest.approx(there, abs=1e-12)
    assert one.path[-1] != World(FedDC, FOUR, [1.0, 1.0], **given).path[-1]


class WithoutDrift(FedDC):
    """FedDC whose server leaves the drift out."""

    def finish(self, params: Tensor, state: Mapping[str, Tensor]) -> Tensor:
        return super().finish(params, state) - state["moved"]


def test_without_drift_it_is_scaffold() -> None:
    given: dict[str, Any] = {"rounds": 6, "lr": 0.1, "momentum": 0.5, "plan": {"sample": 0.5}}
    one = World(Scaffold, FOUR, [1.0, 1.0], options={"uniform": True}, **given)
    other = World(WithoutDrift, FOUR, [1.0, 1.0], options={"alpha": 0.0}, **given)
    for here, there in zip(one.path, other.path, strict=True):
        assert here == pytest.approx(there, abs=1e-12)


@pytest.mark.parametrize("method", ["feddyn", "feddc"])
def test_only_what_the_paper_sends_crosses(train: Train, method: str) -> None:
    average, scaffold, other = (train(method=m).records[0] for m in ("fedavg", "scaffold", method))
    like = average if method == "feddyn" else scaffold
    assert other["bytes_up"] == like["bytes_up"] + 5 * 8  # of each client one more term of its loss
    assert other["bytes_down"] == like["bytes_down"]


# SCAFFOLD and FedProc


def test_scaffold_and_fedproc_combined(train: Train) -> None:
    def params(method: str, **given: Any) -> Tensor:
        return train(method=method, dtype="float64", rounds=3, lr=0.01, **given).state.weights.params

    both, scaffold = params("scaffold+fedproc"), params("scaffold")
    # alpha 0 leaves SCAFFOLD, and a single client has nothing to correct: FedProc
    without = params("scaffold+fedproc", **{"scaffold+fedproc": {"alpha": 0.0}})
    torch.testing.assert_close(without, scaffold, rtol=0, atol=1e-12)
    single = params("scaffold+fedproc", clients=1)
    torch.testing.assert_close(single, params("fedproc", clients=1), rtol=0, atol=1e-12)
    for alone in (scaffold, params("fedproc")):
        assert (both - alone).norm() > 1e-6 * alone.norm()


def test_the_combination_follows_the_authors_code_where_fedproc_does() -> None:
    given = [Experiment(method=name, preset="author_code").config()[name] for name in ("fedproc", "scaffold+fedproc")]
    assert given[1] == {**given[0], "uniform": False}
