"""FedProto and FPL: z pulled to prototypes by distance, and contrasted with clusters of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Train, toy_images
from quadratics import Client, World
from torch import Tensor

from fedproc import prototypes
from fedproc.methods.fedproto import FedProto, squared_distances
from fedproc.methods.fpl import FPL, centres, cluster_contrast, cluster_means
from fedproc.methods.method import Answer, ClientProblem, ServerProblem


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# FedProto


def test_without_the_pull_it_is_fedavg(train: Train) -> None:
    images = toy_images(absent=3)
    average = train(images, method="fedavg", rounds=3).state.weights.params
    assert torch.equal(
        average, train(images, method="fedproto", rounds=3, fedproto={"weight": 0.0}).state.weights.params
    )
    assert not torch.equal(average, train(images, method="fedproto", rounds=3).state.weights.params)


def test_the_first_round_has_no_pull(train: Train) -> None:
    one, other = (train(method=m, rounds=1).state.weights.params for m in ("fedavg", "fedproto"))
    assert torch.equal(one, other)


def test_personal_models_without_pull_train_alone() -> None:
    # A: 1 -> 0.5 -> 0.25, B: 1 -> 2.5 -> 3.25, each from its own
    clients = [Client([1.0], [0.0]), Client([1.0], [4.0], label=1)]
    world = World(FedProto, clients, [1.0], options={"weight": 0.0, "models": "personal"})
    assert (world.client_state(0, "params"), world.client_state(1, "params")) == ([0.25], [3.25])
    assert world.path == [[1.0], [1.0]]


def test_the_pull_by_hand() -> None:
    # Round 1: A (class 0) goes to 0.5, B (class 1) to 2.5, and these are the prototypes; the model is 1.5.
    # Round 2, lambda 0.5: A: 1.5 - 0.5 (1.5 + 0.5 * 2 (1.5 - 0.5)), B: 1.5 - 0.5 (-2.5 + 0.5 * 2 (1.5 - 2.5))
    clients = [Client([1.0], [0.0]), Client([1.0], [4.0], label=1)]
    world = World(FedProto, clients, [1.0], options={"weight": 0.5})
    assert [point[0] for point in world.path] == pytest.approx([1.5, (0.25 + 3.25) / 2])


def test_the_slope_of_the_pull() -> None:
    z, c, labels = drawn(5, 4).requires_grad_(), drawn(3, 4, seed=1), torch.tensor([0, 1, 2, 0, 1])
    known = torch.tensor([True, True, False])
    values, counted = squared_distances(z, labels, c, known)
    values.mean().backward()  # samples without a prototype count in the mean
    assert z.grad is not None and counted.tolist() == [True, True, False, True, True]
    expected = 2 * (z.detach() - c[labels]) / (4 * 5)
    expected[2] = 0
    torch.testing.assert_close(z.grad, expected, rtol=1e-12, atol=1e-14)


# FPL


def test_two_holders_are_one_cluster() -> None:
    vectors = drawn(2, 6)
    torch.testing.assert_close(cluster_means(vectors), vectors.mean(dim=0, keepdim=True))
    assert torch.equal(cluster_means(vectors[:1]), vectors[:1])


def test_clusters_by_hand() -> None:
    # directions at 0, 10, 25 and 180, 190 degrees: 0 and 10 are each other's nearest, 25 is linked to 10
    angles = torch.deg2rad(torch.tensor([0.0, 180.0, 10.0, 190.0, 25.0], dtype=torch.float64))
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    found = cluster_means(vectors)
    torch.testing.assert_close(found, torch.stack([vectors[[0, 2, 4]].mean(0), vectors[[1, 3]].mean(0)]))


def test_with_one_cluster_a_class_it_is_the_prototype_loss() -> None:
    z, c, labels = drawn(6, 5), drawn(3, 5, seed=1), torch.tensor([0, 1, 2, 0, 1, 2])
    known = torch.tensor([True, False, True])
    clusters = torch.stack([c, torch.zeros_like(c)], dim=1)
    there = torch.stack([known, torch.zeros_like(known)], dim=1)
    values, counted = cluster_contrast(z, labels, clusters, there, 0.02)
    expected, theirs = prototypes.contrast(z, labels, c, 0.02, known)
    torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(counted, theirs) and not values[1] and not values[4]
    middle, any_there = centres(clusters, there)
    assert torch.equal(any_there, known) and torch.equal(middle[0], c[0])


def test_the_contrast_by_hand() -> None:
    # cosines 1 and 0 with the clusters of class 0, -1 with that of class 1; tau 0.5
    clusters = torch.tensor([[[2.0, 0.0], [0.0, 3.0]], [[-1.0, 0.0], [0.0, 0.0]]], dtype=torch.float64)
    there = torch.tensor([[True, True], [True, False]])
    found = cluster_contrast(torch.tensor([[5.0, 0.0]], dtype=torch.float64), torch.tensor([0]), clusters, there, 0.5)[
        0
    ]
    e = torch.tensor([2.0, 0.0, -2.0], dtype=torch.float64).exp()
    assert found.item() == pytest.approx(-(e[:2].sum() / e.sum()).log().item(), rel=1e-12)


def test_the_server_clusters_what_the_round_brought_and_keeps_the_rest() -> None:
    problem = ClientProblem(3, 2, torch.float64)
    method = FPL(FPL.options_type(), problem, ServerProblem(2, client_sizes=(1,) * 4))
    state: Any = {}
    for held in ([[1, 1, 0]] * 4, [[0, 1, 0]]):
        sums: Any = {}
        for client, counts in enumerate(held):
            means = drawn(3, 2, seed=client) * torch.tensor(counts).unsqueeze(-1)
            tensors = {"class_means": means, "class_counts": torch.tensor(counts)}
            sums = method.collect(state, sums, Answer(client, 1, 1, 0.25, tensors))
        before, state = state, method.receive(state, sums)
    assert state["clusters"].shape == (3, 2, 2)
    assert torch.equal(state["clusters"][0], before["clusters"][0]) and state["there"][0].any()
    torch.testing.assert_close(state["clusters"][1, 0], drawn(3, 2, seed=0)[1])
    assert state["there"][1].tolist() == [True, False] and not state["there"][2].any()


def test_fpl_begins_as_fedavg(train: Train) -> None:
    one, other = (train(method=m, rounds=1).state.weights.params for m in ("fedavg", "fpl"))
    assert torch.equal(one, other)
    records = train(method="fpl", rounds=2).records
    assert records[0]["train_prototype_loss"] == 0 < records[1]["train_prototype_loss"]
