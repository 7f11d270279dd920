"""What went wrong once, each with the numbers that show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Train, fedproc, toy_experiment, toy_images, work
from quadratics import Client, World
from torch import nn

from fedproc import Experiment, InputError
from fedproc.methods.fedproc import FedProc
from fedproc.methods.fedprox import FedProx
from fedproc.methods.method import Batch
from fedproc.networks.flat import Layout
from fedproc.prototypes import nearest

HOT = [
    "--method",
    "fedavg",
    "--clients",
    "10",
    "--partition",
    "iid",
    "--batch-size",
    "256",
    "--lr",
    "8",
    "--normalize-z",
    "false",
    "--device",
    "cpu",
]


def test_a_model_that_leaves_every_bound_ends_in_words_and_again(tmp_path: Path) -> None:
    """The length of its move was infinite in float32, and JSON refused it; it left no result and crashed when
    repeated.
    """
    for _ in range(2):
        done = fedproc("run", *HOT, "--epochs", "2", "--rounds", "2", "--out", tmp_path / "run")
        assert "Traceback" not in done.stderr and done.returncode in (0, 1), done.stderr
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        assert result["status"] in ("finished", "diverged")
        assert done.returncode == (0 if result["status"] == "finished" else 1)


def test_a_diagnostic_does_not_end_a_run_early(tmp_path: Path) -> None:
    """Prototypes of a FedAvg run, which it does not use, ended it one round before its weights did."""
    done = fedproc("run", *HOT, "--epochs", "1", "--rounds", "3", "--out", tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "class_means" not in str(result.get("reason")), result
    assert len(lines) == (3 if result["status"] == "finished" else result["round"] - 1), done.stderr


def test_uniform_scaffold_merges_statistics_by_samples(train: Train) -> None:
    """SPEC: running statistics are averaged with p_i in every method. After one round from the same start, uniform
    SCAFFOLD's are FedAvg's, while its parameters are not.
    """
    given = {"network": "toy_networks:BatchNormNet", "rounds": 1, "dtype": "float64"}
    average = train(method="fedavg", **given).state.weights
    uniform = train(method="scaffold", scaffold={"uniform": True}, **given).state.weights
    torch.testing.assert_close(uniform.buffers, average.buffers, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(uniform.params, average.params)


def test_fedprox_reports_what_it_minimises() -> None:
    # h = 1, b = 0, mu = 2, one client, lr 0.5, two steps from 1: losses 0.5 + 0 and, at 0.5, 0.125 + (2/2) 0.25
    world = World(FedProx, [Client([1.0], [0.0], steps=2)], [1.0], rounds=1, options={"mu": 2.0})
    record = world.records[0]
    assert record["train_cross_entropy"] == pytest.approx((0.5 + 0.125) / 2)
    assert record["train_squared_distance"] == pytest.approx((0 + 0.25) / 2)
    assert record["train_loss"] == pytest.approx((0.5 + 0.125 + 0.25) / 2)


def test_moons_mu_follows_the_partitions_number_of_clients(tmp_path: Path) -> None:
    path = tmp_path / "clients.json"
    for count, mu in ((60, 10.0), (49, 1.0)):
        path.write_text(json.dumps([[i] for i in range(count)]))
        made = Experiment(method="moon", data="cifar100", partition="file", partition_file=path, clients=10)
        assert made.options.mu == mu  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"partition_file .* cannot be read"):
        Experiment(method="moon", data="cifar100", partition="file", partition_file=tmp_path / "none.json")


def test_what_has_no_weight_adds_nothing_even_if_it_is_infinite() -> None:
    values = torch.tensor([[torch.inf, 1.0], [2.0, 4.0]], requires_grad=True)
    none = torch.zeros(2, 2)
    batch = Batch(none, none, torch.zeros(2, 2, dtype=torch.int64), None, lambda weights: (none, none))
    weighted, mean = batch.weighted(values, torch.tensor([0.0, 0.5]))
    assert weighted.tolist() == [0.0, 1.5] and mean.tolist() == [torch.inf, 3.0]
    weighted.sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None and values.grad.tolist() == [[0.0, 0.0], [0.25, 0.25]]


def test_a_first_round_of_prototypes_alone_survives_an_infinite_cross_entropy() -> None:
    clients = [Client([1e200, 1e200], [1e200, 0.0], label=0), Client([1.0, 1.0], [0.0, 1.0], label=1)]
    world = World(FedProc, clients, [1.0, 2.0], rounds=2, until=1)
    assert world.records[0]["train_cross_entropy"] is None  # infinite, and on record as nothing
    assert world.records[0]["train_loss"] is not None and world.records[0]["clients"] == 2


def test_no_class_known_is_no_class() -> None:
    z, prototypes = torch.ones(3, 2), torch.ones(4, 2)
    assert nearest(z, prototypes, torch.zeros(4, dtype=torch.bool)).tolist() == [-1, -1, -1]
    assert nearest(z, prototypes, torch.tensor([False, True, False, False])).tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8])
def test_buffers_that_would_not_travel_are_refused(dtype: torch.dtype) -> None:
    class Masked(nn.Module):
        def __init__(self, persistent: bool) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.register_buffer("mask", torch.ones(2, dtype=dtype), persistent=persistent)

    with pytest.raises(ValueError, match=r"its buffer mask is .*: expected float or int64 numbers.*persistent=False"):
        Layout.of(Masked(True))
    assert Layout.of(Masked(False)).sizes == (6, 0, 0)


def test_an_edited_encoder_does_not_continue_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "import torch\n\nclass Mine(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = torch.nn.Linear(256, 8)\n\n"
        "    def forward(self, x):\n        return self.linear(x.flatten(1))\n"
    )
    (tmp_path / "my_encoder.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    given: dict[str, Any] = {"network": "my_encoder:Mine", "method": "fedavg"}
    work(tmp_path / "run", rounds=2, **given)
    work(tmp_path / "run", rounds=3, **given)
    (tmp_path / "my_encoder.py").write_text(source.replace("x.flatten(1)", "0.5 * x.flatten(1)"))
    with pytest.raises(InputError, match="network my_encoder:Mine: its source has changed since the run"):
        work(tmp_path / "run", rounds=4, **given)


def test_every_round_of_a_sampled_run_is_tested_with_every_class_it_has_seen(train: Train) -> None:
    """Two of five clients per round: FedProc keeps the prototypes of classes they lack, and so does the diagnostic."""
    images = toy_images()
    given = {"sample": 0.4, "rounds": 6, "beta": 0.1, "min_size": 3}
    average = train(images, method="fedavg", **given)
    held = torch.stack([data.class_counts > 0 for data in average.clients])
    known = average.state.diagnostics["known"]
    assert not held.all() and known.tolist() == held.any(dim=0).tolist()


@pytest.mark.slow
def test_nothing_of_one_run_is_left_for_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from fedproc import kernels, run
    from fedproc.methods import METHODS

    before = (list(sys.path), kernels.precision(), torch.backends.cuda.matmul.allow_tf32, dict(METHODS))
    toys = Path(__file__).resolve().parent.parent / "toy_methods.py"
    given = {"clients": 2, "rounds": 1, "epochs": 1, "batch_size": 512, "device": "cpu"}
    run(Experiment(method="remembers", plugin=[toys], **given))
    run(toy_experiment(method="fedavg", data="fashion-mini", network="toy_networks:DropoutNet28", rounds=1))
    assert before == (list(sys.path), kernels.precision(), torch.backends.cuda.matmul.allow_tf32, dict(METHODS))
    with pytest.raises(InputError, match="method remembers: expected fedavg"):
        Experiment(method="remembers")
    with pytest.raises(TypeError):
        METHODS["remembers"] = METHODS["fedavg"]  # type: ignore[index]
