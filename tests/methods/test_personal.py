"""FedPer, FedRep and FedBN: what each client keeps to itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import Train, toy_images

from fedproc.simulation.session import Session

BN = "toy_networks:BatchNormNet"


def own(session: Session, client: int) -> dict[str, torch.Tensor]:
    state = session.states.get(client)
    assert state is not None
    return session.setting.layout.named(type(session.state.weights).of(state))


def names(session: Session) -> list[str]:
    return list(session.setting.layout.named(session.state.weights))


@pytest.mark.parametrize(
    ("method", "options", "kept"),
    [
        ("fedper", {}, ("classifier.",)),
        ("fedper", {"head": True}, ("classifier.", "head.")),
        ("fedrep", {"head_epochs": 1}, ("classifier.",)),
    ],
)
def test_what_is_kept_differs_and_the_rest_is_averaged(
    train: Train, method: str, options: dict[str, Any], kept: tuple[str, ...]
) -> None:
    session = train(toy_images(), method=method, rounds=2, network=BN, **{method: options})
    first = dict(session.setting.network.named_parameters())
    named = session.setting.layout.named(session.state.weights)
    for name in names(session):
        ours = [own(session, client)[name] for client in range(5)]
        if name.startswith(kept):
            assert torch.equal(named[name], first[name])  # the server's never moves
            assert not torch.equal(ours[0], ours[1])
        elif name in first:
            assert not torch.equal(named[name], first[name])
    assert session.result is not None and session.result["final_own_accuracy"] == session.records[-1]["own_accuracy"]
    assert session.records[-1]["own_accuracy"] > session.records[-1]["test_accuracy"]


def test_fedper_sends_the_rest_alone(train: Train) -> None:
    average, other = (train(method=m).records[0]["bytes_up"] for m in ("fedavg", "fedper"))
    assert average - other == 5 * 4 * (256 * 4 + 4)


def test_fedrep_without_its_first_phase_leaves_the_classifiers(train: Train) -> None:
    session = train(method="fedrep", rounds=2, fedrep={"head_epochs": 0})
    first = dict(session.setting.network.named_parameters())
    for client in range(5):
        assert torch.equal(own(session, client)["classifier.weight"], first["classifier.weight"])
    assert not torch.equal(own(session, 0)["head.0.weight"], first["head.0.weight"])


def test_fedreps_phases(train: Train) -> None:
    method = train(method="fedrep", epochs=3, rounds=1, fedrep={"head_epochs": 2}).plan.method
    assert [(phase.name, phase.epochs, phase.trains, phase.returns) for phase in method.phases(0)] == [
        ("head", 2, "classifier", False),
        ("body", 3, "features", True),
    ]
    other = train(method="fedrep", epochs=3, rounds=1, fedrep={"head_epochs": 2, "body_epochs": 1}).plan.method
    assert [phase.epochs for phase in other.phases(0)] == [2, 1]


def test_fedbn_without_batch_norm_is_fedavg(train: Train) -> None:
    average, other = (train(method=m, rounds=3).state.weights.params for m in ("fedavg", "fedbn"))
    assert torch.equal(average, other)


def test_fedbn_keeps_all_of_its_layers(train: Train) -> None:
    session = train(method="fedbn", rounds=2, network="resnet18", width=4, epochs=1)
    layers = dict(session.setting.layout.layers)
    norms = [name for name in names(session) if "BatchNorm" in layers[name]]
    assert any("running_mean" in name for name in norms) and len(norms) > 20
    for name in names(session):
        ours = [own(session, client)[name] for client in range(5)]
        if name in norms and "num_batches" not in name:
            assert not torch.equal(ours[0], ours[1]), name
    assert "own_accuracy" in session.records[-1]
