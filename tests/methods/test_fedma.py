"""Matched averaging: clients whose units are in another order are averaged as if they were not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import Train, toy_images, toy_session
from torch import Tensor

from fedproc import InputError
from fedproc.methods.fedma import FedMA
from fedproc.methods.matching import assignment, chain, matched
from fedproc.methods.method import Answer
from fedproc.protocol.weights import Weights
from fedproc.simulation.session import Session

FLOAT64 = {"method": "fedma", "dtype": "float64"}


def method_of(session: Session) -> FedMA:
    found = session.plan.method.knowing(session.client_sizes).method  # type: ignore[attr-defined]
    assert isinstance(found, FedMA)
    return found


def shuffled(session: Session, params: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """The same network with the units of every hidden layer in another order, and the order of z."""
    generator = torch.Generator().manual_seed(seed)
    layers, inputs, parts = chain(session.assembly.method.client.tensors), None, []
    for layer in layers[:-1]:
        order = torch.randperm(layer.units, generator=generator)
        parts.append(layer.arranged(params, order, inputs))
        inputs = order
    assert inputs is not None
    return torch.cat([*parts, layers[-1].arranged(params, None, inputs)]), inputs


def outputs(session: Session, params: Tensor) -> Tensor:
    setting, network = session.setting, session.setting.network.eval()
    weights = setting.layout.read(network)
    setting.layout.bind(network, Weights(params.clone(), weights.buffers, weights.counters))
    pixels = setting.normalisation.apply(setting.train.images[:7], torch.float64)
    with torch.no_grad():
        _, logits = network(pixels)
    setting.layout.bind(network, weights)
    return logits


def answers(session: Session, clients: list[Tensor], **more: Tensor) -> list[Answer]:
    sizes = [5, 9, 7]
    return [
        Answer(i, sizes[i], 1, 1 / 3, {"params": p, **{n: t[i] for n, t in more.items()}})
        for i, p in enumerate(clients)
    ]


@pytest.fixture(scope="module")
def session() -> Session:
    return toy_session(toy_images(channels=3, side=20), **FLOAT64)


def test_another_order_of_the_units_is_the_same_network(session: Session) -> None:
    params = session.state.weights.params
    other, _ = shuffled(session, params, 1)
    assert not torch.allclose(params, other)
    torch.testing.assert_close(outputs(session, params), outputs(session, other))


def test_clients_that_are_permuted_copies_return_the_same_function(session: Session) -> None:
    params = session.state.weights.params
    made = [shuffled(session, params, seed) for seed in range(3)]
    means = torch.randn(4, 256, dtype=torch.float64)
    theirs = torch.stack([means[:, z] for _, z in made])
    aligned = method_of(session).align(answers(session, [p for p, _ in made], class_means=theirs))
    for each in aligned:  # all in the order of the client with the most samples
        assert torch.equal(each.tensors["params"], made[1][0])
        assert torch.equal(each.tensors["class_means"], theirs[1])
    mean = torch.stack([each.tensors["params"] for each in aligned]).mean(dim=0)
    torch.testing.assert_close(outputs(session, mean), outputs(session, params))
    plain = torch.stack([p for p, _ in made]).mean(dim=0)
    assert not torch.allclose(outputs(session, plain), outputs(session, params))


def test_noisy_copies_are_matched_too(session: Session) -> None:
    params = session.state.weights.params
    noisy = [params + 0.01 * params.std() * torch.randn_like(params) for _ in range(3)]
    clients = [shuffled(session, each, seed)[0] for seed, each in enumerate(noisy)]
    aligned = method_of(session).align(answers(session, clients))
    mean = torch.stack([each.tensors["params"] for each in aligned]).mean(dim=0)
    ideal = torch.stack(noisy).mean(dim=0)
    torch.testing.assert_close(outputs(session, mean), outputs(session, ideal))


def test_units_in_the_same_order_stay_where_they_are(session: Session) -> None:
    params = session.state.weights.params
    clients = [params + 0.01 * params.std() * torch.randn_like(params) for _ in range(3)]
    aligned = method_of(session).align(answers(session, clients))
    assert all(torch.equal(each.tensors["params"], p) for each, p in zip(aligned, clients, strict=True))


def test_sweeps_find_what_one_order_of_matching_misses() -> None:
    like = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert assignment(like[[1, 0]], like).tolist() == [1, 0]
    units = list(torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0)))

    def likeness(sweeps: int) -> float:
        return float(torch.stack([u[o] for u, o in zip(units, matched(units, sweeps), strict=True)]).sum(dim=0).norm())

    assert likeness(5) > likeness(0) > float(torch.stack(units).sum(dim=0).norm())


def test_the_classifier_is_averaged_by_the_samples_of_each_class(session: Session) -> None:
    method, params = method_of(session), session.state.weights.params
    clients = [params + 0.1 * torch.randn_like(params) for _ in range(2)]
    held = torch.tensor([[3.0, 0.0, 1.0, 0.0], [1.0, 2.0, 0.0, 0.0]], dtype=torch.float64)
    state: dict[str, Tensor] = {"held": held}
    sums: dict[str, Tensor] = {}
    for each in answers(session, clients):
        sums = method.collect(state, sums, each)
    mean = sum(clients) / 2
    found = method.finish(mean, method.receive(state, sums))  # type: ignore[arg-type]
    last = chain(method.client.tensors)[-1]
    rows, (a, b) = last.rows(found), (last.rows(p) for p in clients)
    assert torch.equal(found[: last.start], mean[: last.start])  # type: ignore[index]
    torch.testing.assert_close(rows[0], (3 * a[0] + b[0]) / 4)
    torch.testing.assert_close(rows[1], b[1])
    torch.testing.assert_close(rows[2], a[2])
    torch.testing.assert_close(rows[3], (a[3] + b[3]) / 2)  # nobody has it


def test_layers_become_final_one_after_the_other(train: Train) -> None:
    ends = [train(rounds=rounds, **FLOAT64).state.weights.params for rounds in (1, 2, 3)]
    session = train(rounds=3, **FLOAT64)
    method = method_of(session)
    first, second = chain(method.client.tensors)[:2]
    assert torch.equal(ends[0][: first.stop], ends[1][: first.stop])
    assert not torch.equal(ends[0][second.start :], ends[1][second.start :])
    assert torch.equal(ends[1][: second.stop], ends[2][: second.stop])
    assert [phase.name for t in range(8) for phase in method.phases(t)] == [
        "train", *(f"above-{stage}" for stage in range(1, 7)), "train",
    ]  # fmt: skip
    state = session.states.get(0)
    assert (
        state is not None
        and state["stage"].item() == 2
        and torch.equal(state["own"][: second.stop], ends[1][: second.stop])
    )


def test_a_client_goes_on_with_its_own_layers_in_the_new_order(session: Session) -> None:
    method, params = method_of(session), session.state.weights.params
    final, following = chain(method.client.tensors)[1:3]
    own, _ = shuffled(session, params, 5)
    own[: chain(method.client.tensors)[0].stop] = params[: chain(method.client.tensors)[0].stop]
    own = torch.cat([own[: final.start], final.arranged(params, torch.arange(15, -1, -1), None), own[final.stop :]])
    sent = replace(session.state.weights, params=params)
    started = method.start(sent, {"own": own, "stage": torch.tensor([1])}, "above-2").params
    assert torch.equal(started[: final.stop], params[: final.stop])
    assert torch.equal(started[following.stop :], own[following.stop :])
    torch.testing.assert_close(outputs(session, started), outputs(session, own))
    again = method.start(sent, {"own": own, "stage": torch.tensor([0])}, "above-2").params  # it was not there before
    assert torch.equal(again, params)


def test_the_same_clients_until_all_layers_are_final(train: Train) -> None:
    method = method_of(toy_session(sample=0.4, **FLOAT64))
    cohorts = [list(method.participants(t, [0, 1])) for t in range(14)]
    assert all(cohort == cohorts[1] for cohort in cohorts[1:7]) and cohorts[8] == cohorts[13]


def test_without_retraining_every_round_is_whole(train: Train) -> None:
    session = train(rounds=2, fedma={"retrain": 0}, **FLOAT64)
    assert [phase.name for t in range(3) for phase in method_of(session).phases(t)] == ["train"] * 3
    assert session.states.get(0) in (None, {})


@pytest.mark.parametrize("given", [{"network": "resnet18", "width": 4}, {"network": "toy_networks:BatchNormNet"}])
def test_other_networks_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="method fedma: it can match the units of network simple-cnn alone"):
        toy_session(method="fedma", **given)
