"""Ditto and fine-tuning: models of the clients' own beside the global one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Train, toy_images, work
from quadratics import Client, World
from torch import Tensor

from fedproc import InputError
from fedproc.methods.ditto import Ditto
from fedproc.methods.fedavg import FedAvg
from fedproc.runs.folder import client_model
from fedproc.simulation.session import Session

TOYS = Path(__file__).resolve().parent.parent / "toy_methods.py"
BN = "toy_networks:BatchNormNet"
TWO = [Client([1.0, 0.5], [0.0, 1.0], steps=2), Client([2.0, 1.0], [4.0, -1.0], samples=3, steps=3)]


def own(session: Session, client: int) -> Tensor:
    return session.client_models()[client].params


def test_dittos_global_model_is_fedavgs_and_lambda_0_trains_alone(train: Train) -> None:
    given: dict[str, Any] = {"network": BN, "rounds": 2, "plugin": [TOYS]}
    average, alone = train(method="fedavg", **given), train(method="alone", **given)
    ditto = train(method="ditto", ditto={"weight": 0.0}, **given)
    for name, tensor in average.state.weights.tensors().items():
        assert torch.equal(tensor, ditto.state.weights.tensors()[name])
    for name in ("test_accuracy", "train_loss", "prototype_accuracy", "bytes_up", "bytes_down"):
        assert ditto.records[-1][name] == average.records[-1][name]
    for client in range(5):
        state = alone.states.get(client)
        assert state is not None
        for name, tensor in ditto.client_models()[client].tensors().items():
            assert torch.equal(tensor, state[name])
    assert ditto.records[-1]["own_accuracy"] == alone.records[-1]["own_accuracy"]
    assert not torch.equal(own(train(method="ditto", **given), 0), own(ditto, 0))


def test_dittos_own_models_by_hand() -> None:
    # lambda 0.5, lr 0.5, no momentum: v <- v - 0.5 (h (v - b) + 0.5 (v - w)), v and w begin at 1
    world = World(Ditto, [Client([1.0], [0.0], steps=2)], [1.0], rounds=2, options={"weight": 0.5})
    v, w = 1.0, 1.0
    for _ in range(2):
        sent = w
        for _ in range(2):
            v, w = v - 0.5 * (v + 0.5 * (v - sent)), w - 0.5 * w
    assert world.client_state(0, "own_params") == pytest.approx([v], rel=1e-12)
    assert world.path[-1] == pytest.approx([w], rel=1e-12)


def test_without_a_slope_dittos_own_model_goes_to_the_global_one() -> None:
    # the global model stays at 2, v begins at -1 and comes nearer by 1 - lr lambda = 0.9 in each of 3 steps
    class Elsewhere(Ditto):
        def first_client_state(self, client: int, sent: Any, fresh: Any) -> Any:
            above = super().first_client_state(client, sent, fresh)
            return {**above, "own_params": torch.full_like(sent.params, -1.0)}

    flat = [Client([0.0], [0.0], steps=3)]
    world = World(Elsewhere, flat, [2.0], rounds=1, lr=0.1, options={"weight": 1.0})
    assert world.path == [[2.0]]
    assert world.client_state(0, "own_params") == pytest.approx([2.0 - 3.0 * 0.9**3], rel=1e-12)


def test_fine_tuning_is_fedavg_and_one_round_more(train: Train) -> None:
    images = toy_images()
    given: dict[str, Any] = {"network": BN, "rounds": 2, "lr_schedule": "cosine", "sample": 0.6}
    average = train(images, method="fedavg", **given)
    tuned = train(images, method="fine-tuning", fine_tuning={"tune_epochs": 3}, **given)
    for name, tensor in average.state.weights.tensors().items():
        assert torch.equal(tensor, tuned.state.weights.tensors()[name])
    assert [r["train_loss"] for r in tuned.records[:2]] == [r["train_loss"] for r in average.records]
    last = tuned.records[2]
    assert last["clients"] == 5 and last["lr"] == tuned.records[0]["lr"] > tuned.records[1]["lr"]
    assert last["bytes_up"] == 5 * 8 * 4 and "update_norm" not in last  # two losses and two counts come back
    assert last["test_accuracy"] == average.records[-1]["test_accuracy"]
    assert not any("own_accuracy" in record for record in tuned.records[:2])
    assert last["own_accuracy"] == tuned.result["final_own_accuracy"] > last["test_accuracy"]
    assert last["train_loss"] < tuned.records[0]["train_loss"]
    assert tuned.result["last10_accuracy"] == average.result["last10_accuracy"]


def test_fine_tuning_for_no_epochs_is_fedavg(train: Train) -> None:
    average, tuned = train(method="fedavg"), train(method="fine-tuning", fine_tuning={"tune_epochs": 0})
    assert torch.equal(average.state.weights.params, tuned.state.weights.params)
    assert len(tuned.records) == len(average.records) == 2


def test_fine_tuning_of_the_head_alone(train: Train) -> None:
    session = train(method="fine-tuning", network=BN, rounds=1, fine_tuning={"tune_epochs": 2, "head": True})
    span, weights = session.setting.layout.span("classifier."), session.state.weights
    for model in session.client_models().values():
        assert torch.equal(model.params[: span.start], weights.params[: span.start])
        assert not torch.equal(model.params[span], weights.params[span])
        assert torch.equal(model.buffers, weights.buffers)


@pytest.mark.parametrize("method", ["ditto", "fine-tuning"])
def test_own_models_agree_in_all_executors(train: Train, method: str) -> None:
    images = toy_images(absent=2)
    given: dict[str, Any] = {"method": method, "dtype": "float64", "lr": 0.01, "rounds": 1, "epochs": 1}
    given |= {"fine_tuning": {"tune_epochs": 2}} if method == "fine-tuning" else {}
    serial = train(images, "serial", 1, **given)
    for executor, lanes in (("stacked", 3), ("streamed", 2)):
        other = train(images, executor, lanes, **given)
        for client in range(5):
            assert (own(serial, client) - own(other, client)).norm() <= 1e-9 * own(serial, client).norm()
        assert serial.records[-1]["own_models"]["accuracy"] == other.records[-1]["own_models"]["accuracy"]


def test_own_models_are_kept_and_a_run_goes_on_with_them(tmp_path: Path) -> None:
    given: dict[str, Any] = {"method": "fine-tuning", "fine_tuning": {"tune_epochs": 1}, "rounds": 2}
    given |= {"checkpoint_every": 1, "keep_clients": True}
    whole = work(tmp_path / "whole", **given)
    assert whole.result is not None and whole.result["rounds"] == 3 and whole.config["rounds"] == 2
    assert (tmp_path / "whole/model.safetensors").is_file()
    assert all((tmp_path / "whole" / client_model(client)).is_file() for client in range(5))
    again = work(tmp_path / "whole", **given)
    assert again.result == whole.result
    with pytest.raises(InputError, match="clients train by themselves after the last of all rounds"):
        work(tmp_path / "whole", **{**given, "rounds": 3})


def test_what_does_not_go_with_own_models(train: Train) -> None:
    with pytest.raises(InputError, match="keep best: ditto has models of each client's own"):
        train(method="ditto", keep="best", val_fraction=0.3)


def test_they_combine_with_other_methods() -> None:
    from fedproc.methods.scaffold import Scaffold

    class Both(Ditto, Scaffold):
        name = "both"

    both, scaffold = (World(kind, TWO, [1.0, 1.0], rounds=3) for kind in (Both, Scaffold))
    assert both.path == scaffold.path != World(FedAvg, TWO, [1.0, 1.0], rounds=3).path
