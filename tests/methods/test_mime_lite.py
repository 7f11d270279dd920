"""Mime-lite, by hand and by its identities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Train, toy_images
from quadratics import Client, World

from fedproc.methods.mime_lite import MimeLite
from fedproc.simulation.session import Session

TWO = [Client([1.0], [0.0], samples=1, steps=2), Client([2.0], [4.0], samples=3, steps=1)]


def params(session: Session) -> torch.Tensor:
    return session.state.weights.params


def test_without_the_servers_momentum_it_is_fedavg_without_any(train: Train) -> None:
    average = train(method="fedavg", momentum=0.0, dtype="float64", rounds=3)
    mime = train(method="mime-lite", momentum=0.0, dtype="float64", rounds=3, mime_lite={"beta": 0.0})
    assert torch.equal(params(average), params(mime))
    own = train(method="mime-lite", momentum=0.9, dtype="float64", rounds=3, mime_lite={"beta": 0.0})
    assert (params(own) - params(mime)).norm() < 1e-12 * params(mime).norm()


def test_the_first_round_is_fedavgs_with_a_smaller_rate(train: Train) -> None:
    given: dict[str, Any] = {"momentum": 0.0, "dtype": "float64", "rounds": 1, "weight_decay": 0.0}
    average, mime = train(method="fedavg", lr=0.005, **given), train(method="mime-lite", lr=0.05, **given)
    assert (params(average) - params(mime)).norm() < 1e-12 * params(mime).norm()


def test_two_rounds_by_hand() -> None:
    # beta 0.5, lr 0.5, w = 1, s = 0. Gradients at 1: A 1, B -6. A goes by 0.5 of its own: 0.75, then 0.5625; B to 2.5.
    # w = (0.5625 + 3 * 2.5)/4 = 2.015625 and s = 0.5 (1 - 18)/4 = -2.125.
    world = World(MimeLite, TWO, [1.0], rounds=2, lr=0.5, momentum=0.9, options={"beta": 0.5})
    first = (0.5625 + 3 * 2.5) / 4
    assert world.path[0] == pytest.approx([first], rel=1e-12)
    assert world.states[1].method["momentum"].tolist() == pytest.approx([-2.125], rel=1e-12)
    a, b, s = first, first, -2.125
    for _ in range(2):
        a -= 0.5 * (0.5 * a + 0.5 * s)
    b -= 0.5 * (0.5 * 2 * (b - 4) + 0.5 * s)
    assert world.path[1] == pytest.approx([(a + 3 * b) / 4], rel=1e-12)
    mean = (first + 3 * 2 * (first - 4)) / 4
    assert world.states[2].method["momentum"].tolist() == pytest.approx([0.5 * s + 0.5 * mean], rel=1e-12)


def test_the_gradient_is_that_of_the_data_at_what_was_sent(train: Train) -> None:
    """Of one client with two whole batches: the mean of their gradients, held against the network's own."""
    images = toy_images(per_class=8)
    given: dict[str, Any] = {"clients": 1, "partition": "iid", "rounds": 1, "dtype": "float64", "weight_decay": 0.1}
    session = train(images, method="mime-lite", mime_lite={"beta": 0.5}, **given)
    setting, data = session.setting, session.clients[0]
    assert len(data) == 32 == 2 * setting.batch_size
    pixels = setting.normalisation.apply(setting.train.images[data.indices], torch.float64)
    network = setting.network.train()
    loss = torch.nn.functional.cross_entropy(network(pixels)[1], setting.train.labels[data.indices])
    gradients = torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad])
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    torch.testing.assert_close(2 * session.state.method["momentum"], flat)


def test_bytes(train: Train) -> None:
    average, mime = (train(method=method, rounds=1).records[0] for method in ("fedavg", "mime-lite"))
    more = 5 * 4 * len(params(train(method="fedavg", rounds=1)))
    assert (mime["bytes_up"], mime["bytes_down"]) == (average["bytes_up"] + more, average["bytes_down"] + more)
