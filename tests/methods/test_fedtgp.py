"""FedTGP: prototypes that the server learns."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import Train, toy_images

from fedproc.methods.fedtgp import LAYERS, FedTGP, Options, _gap, _generated, _loss
from fedproc.methods.method import Answer, ClientProblem, ServerProblem, Tensors

CLASSES, FEATURES = 3, 4


def made(**options: object) -> FedTGP:
    client = ClientProblem(CLASSES, FEATURES, torch.float64)
    return FedTGP(Options(**options), client, ServerProblem(2, client_sizes=(3, 5)))  # type: ignore[arg-type]


def answer(client: int, means: list[list[float]], counts: list[int]) -> Answer:
    tensors = {"class_means": torch.tensor(means, dtype=torch.float64), "class_counts": torch.tensor(counts)}
    return Answer(client, sum(counts), 1, 0.5, tensors)


A = answer(0, [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]], [1, 2, 0])
B = answer(1, [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], [5, 0, 0])


def received(method: FedTGP, *answers: Answer) -> tuple[Tensors, Tensors]:
    state = method.first_state(7)
    sums: Tensors = {}
    for each in answers:
        sums = method.collect(state, sums, each)
    return state, method.receive(state, sums)


def test_the_server_learns_prototypes_of_the_classes_it_has_seen() -> None:
    method = made(server_lr=0.05, server_epochs=300)
    before, after = received(method, A, B)
    assert not before["known"].any() and after["known"].tolist() == [True, True, False]
    means = torch.cat([A.tensors["class_means"][:2], B.tensors["class_means"][:1]])
    labels, weights = torch.tensor([0, 1, 0]), torch.ones(3, dtype=torch.float64)
    was, now = (float(_loss({n: s[n] for n in LAYERS}, means, labels, weights, 1.0)) for s in (before, after))
    assert now < 0.5 * was
    nearest = torch.cdist(means, after["prototypes"][:2]).argmin(dim=1)
    assert nearest.tolist() == labels.tolist()
    assert torch.equal(after["prototypes"][:2], _generated({n: after[n] for n in LAYERS})[:2])
    assert not after["prototypes"][2].any()
    assert torch.equal(received(method, A, B)[1]["prototypes"], after["prototypes"])  # the same draws each time


def test_a_round_without_epochs_leaves_the_layers_as_they_are() -> None:
    before, after = received(made(server_epochs=0), A, B)
    assert all(torch.equal(before[name], after[name]) for name in LAYERS)


def test_one_step_is_that_of_sgd() -> None:
    method = made(server_epochs=1, server_batch=3, server_lr=0.1, weighting="count")
    before, after = received(method, A, B)
    layers = {name: before[name].clone().requires_grad_() for name in LAYERS}
    hidden = F.relu(F.linear(layers["embedding"], layers["weight1"], layers["bias1"]))
    c = F.linear(hidden, layers["weight2"], layers["bias2"])
    means = torch.cat([A.tensors["class_means"][:2], B.tensors["class_means"][:1]])
    labels = torch.tensor([0, 1, 0])
    centres = torch.tensor([[1, 0.5, 0, 0], [0, 2, 0, 0]], dtype=torch.float64)
    gap = (centres[0] - centres[1]).norm()
    distances = torch.cdist(means, c) + gap * F.one_hot(labels, 3)
    each = F.cross_entropy(-distances, labels, reduction="none")
    ((1 * each[0] + 2 * each[1] + 5 * each[2]) / 8).backward()
    for name in LAYERS:
        torch.testing.assert_close(after[name], layers[name].detach() - 0.1 * layers[name].grad)  # type: ignore[operator]


def test_the_gap_is_that_to_the_nearest_other_class() -> None:
    sums = torch.tensor([[0.0], [2.0], [10.0], [0.0]], dtype=torch.float64)
    counts = torch.tensor([1.0, 2.0, 2.0, 0.0], dtype=torch.float64)  # centres 0, 1 and 5
    assert _gap(sums, counts) == 4
    assert _gap(sums, torch.tensor([1.0, 0.0, 0.0, 0.0])) == math.inf


def test_without_a_pull_it_is_training_alone(train: Train) -> None:
    given = {"rounds": 2, "epochs": 1}
    tgp = train(method="fedtgp", fedtgp={"weight": 0.0, "server_epochs": 1}, **given)
    proto = train(method="fedproto", fedproto={"weight": 0.0, "models": "personal"}, **given)
    for client in range(5):
        one, other = tgp.states.get(client), proto.states.get(client)
        assert one is not None and other is not None and torch.equal(one["params"], other["params"])
    assert tgp.records[0]["bytes_up"] == proto.records[0]["bytes_up"]


@pytest.mark.parametrize("method", ["fedtgp", "fedproto"])
def test_personal_ones_have_their_own_accuracy(train: Train, method: str) -> None:
    options = {"models": "personal"}
    session = train(toy_images(), method=method, rounds=2, epochs=1, **{method: options})
    assert session.result is not None and session.result["final_own_accuracy"] > session.result["final_accuracy"]
