"""FedSAM and MoFedSAM, by hand and by their identities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Train
from quadratics import Client, World

from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedsam import FedSAM
from fedproc.methods.method import Term

TWO = [Client([1.0, 0.5], [0.0, 1.0], steps=2), Client([2.0, 1.0], [4.0, -1.0], samples=3, steps=3)]


def test_with_radius_zero_it_is_fedavg(train: Train) -> None:
    one = train(method="fedavg", rounds=2).state.weights.params
    assert torch.equal(one, train(method="fedsam", rounds=2, fedsam={"radius": 0.0}).state.weights.params)
    assert not torch.equal(one, train(method="fedsam", rounds=2).state.weights.params)


def test_on_a_quadratic_by_hand() -> None:
    # g = h (w - b); the gradient that counts is h (w + 0.3 g/|g| - b)
    world = World(FedSAM, [Client([1.0, 3.0], [0.0, 2.0])], [1.0, 1.0], rounds=1, lr=0.1, options={"radius": 0.3})
    g = torch.tensor([1.0, -3.0], dtype=torch.float64)
    second = g + torch.tensor([1.0, 3.0], dtype=torch.float64) * 0.3 * g / g.norm()
    assert world.path[0] == pytest.approx((1 - 0.1 * second).tolist(), rel=1e-12)


class Linear(FedSAM):
    """A loss whose gradient is b, wherever one is."""

    _quadratic = False

    def loss(self, batch: Any, local: Any) -> Any:
        return {"cross_entropy": Term((batch.logits[..., batch.z.shape[-1] :] * batch.z).sum(dim=-1))}


def test_on_a_linear_loss_every_radius_is_fedavg() -> None:
    paths = [World(Linear, TWO, [1.0, 1.0], options={"radius": r}).path for r in (0.0, 5.0)]
    for here, there in zip(*paths, strict=True):
        assert here == pytest.approx(there, abs=1e-12)


def test_without_a_gradient_nothing_is_displaced() -> None:
    world = World(FedSAM, [Client([1.0], [1.0])], [1.0], options={"radius": 0.5})
    assert world.path == [[1.0], [1.0]]


# MoFedSAM


def test_momentum_by_hand() -> None:
    # local 0.25, radius 0, lr 0.5. Round 1: A's step is 0.25 of 1, to 0.875; B's 0.25 of -3, to 1.375. The mean of the
    # gradients that they went along is (0.25 - 0.75)/2; the model is 1.125.
    # Round 2: A goes by 0.25 * 1.125 + 0.75 * -0.25, B by 0.25 * -2.875 + 0.75 * -0.25
    clients = [Client([1.0], [0.0]), Client([1.0], [4.0])]
    world = World(FedSAM, clients, [1.0], options={"radius": 0.0, "local": 0.25})
    a, b = 0.25 * 1.125 - 0.75 * 0.25, 0.25 * -2.875 - 0.75 * 0.25
    assert [point[0] for point in world.path] == pytest.approx([1.125, 1.125 - 0.5 * (a + b) / 2])
    assert world.states[1].method["slope"].item() == pytest.approx(-0.25)


def test_momentum_knows_the_learning_rate_that_made_it() -> None:
    # two rounds, of which the second goes at half the rate: the direction that it remembers is that of the gradients
    clients = [Client([1.0], [0.0]), Client([1.0], [4.0])]
    given: dict[str, Any] = {"options": {"radius": 0.0, "local": 0.25}, "plan": {"lr_schedule": "linear"}}
    world = World(FedSAM, clients, [1.0], **given)
    a, b = 0.25 * 1.125 - 0.75 * 0.25, 0.25 * -2.875 - 0.75 * 0.25
    assert [point[0] for point in world.path] == pytest.approx([1.125, 1.125 - 0.25 * (a + b) / 2])


def test_alone_the_gradient_counts_and_nothing_more_is_sent(train: Train) -> None:
    plain, other = (train(method="fedsam", fedsam={"local": share}).records[0] for share in (1.0, 0.1))
    average = train(method="fedavg").records[0]
    assert plain["bytes_down"] == average["bytes_down"] and plain["bytes_up"] == other["bytes_up"]
    params = (other["bytes_down"] - plain["bytes_down"]) / (5 * 4)
    assert params == len(train(method="fedsam").state.weights.params)


@pytest.mark.parametrize(("executor", "lanes"), [("stacked", 3), ("streamed", 2)])
def test_momentum_agrees(train: Train, executor: str, lanes: int) -> None:
    given: dict[str, Any] = {"method": "fedsam", "fedsam": {"local": 0.2}, "dtype": "float64", "rounds": 2, "lr": 0.01}
    one, other = (train(None, *how, **given).state.weights.params for how in (("serial", 1), (executor, lanes)))
    assert (one - other).norm() < 1e-9 * one.norm()


def test_a_radius_changes_the_minimum_that_is_found() -> None:
    plain, other = (World(kind, TWO, [1.0, 1.0], rounds=3).path[-1] for kind in (FedAvg, FedSAM))
    assert plain != pytest.approx(other, abs=1e-3)
