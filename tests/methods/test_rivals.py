"""Every method for two rounds on quadratics, by hand.

Unless said otherwise: client A pulls to 0 with one step and a share of 1/4, client B to 4 with two steps and
3/4; h = 1 and lr = 0.5, so a step halves the distance; both start at 1, momentum 0.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from conftest import Train, toy_images
from quadratics import Client, World

from fedproc.methods import METHODS
from fedproc.methods.central import Central
from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedavgm import FedAvgM
from fedproc.methods.fednova import FedNova
from fedproc.methods.fedproc import FedProc
from fedproc.methods.fedprox import FedProx
from fedproc.methods.merges import MERGES, effective_steps
from fedproc.methods.method import Batch, ClientProblem, Local, Options, ServerProblem, Term
from fedproc.methods.moon import Moon
from fedproc.methods.scaffold import Scaffold
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.methods.solo import Solo
from fedproc.methods.two_stage import TwoStage
from fedproc.protocol.weights import Weights

A, B = Client([1.0], [0.0], samples=1, steps=1), Client([1.0], [4.0], samples=3, steps=2)


def flat(world: World) -> list[float]:
    return [point[0] for point in world.path]


def test_fedavg() -> None:
    # A: 1 -> 0.5; B: 1 -> 2.5 -> 3.25; mean 0.125 + 2.4375. Then A: 1.28125; B: 3.28125 -> 3.640625.
    assert flat(World(FedAvg, [A, B], [1.0])) == [2.5625, 0.25 * 1.28125 + 0.75 * 3.640625]


def test_fedprox() -> None:
    # mu = 1. B's second step: (2.5 - 4) + (2.5 - 1) = 0, it stays at 2.5. Mean 0.25 * 0.5 + 0.75 * 2.5 = 2.
    # From 2: A -> 1; B -> 3, then (3 - 4) + (3 - 2) = 0. Mean 0.25 + 2.25.
    assert flat(World(FedProx, [A, B], [1.0], options={"mu": 1.0})) == [2.0, 2.5]


def test_scaffold() -> None:
    world = World(Scaffold, [A, B], [1.0])
    # Round 1 is FedAvg's. c_A = (1 - 0.5)/0.5 = 1; c_B = (1 - 3.25)/(0.5 * 2) = -2.25; c = 0.25 - 1.6875 = -1.4375.
    # Round 2 from 2.5625. A: gradient 2.5625 + (c - c_A) = 0.125 -> 2.5. B: c - c_B = 0.8125; -1.4375 + 0.8125
    # = -0.625 -> 2.875; -1.125 + 0.8125 = -0.3125 -> 3.03125. Mean 0.625 + 2.2734375.
    assert flat(world) == [2.5625, 2.8984375]
    # c_A+ = 1 + 1.4375 + 0.0625/0.5; c_B+ = -2.25 + 1.4375 - 0.46875
    assert world.client_state(0, "control") == [2.5625] and world.client_state(1, "control") == [-1.28125]
    assert [s.method["control"].item() for s in world.states] == [
        0.0,
        -1.4375,
        -1.4375 + 0.25 * 1.5625 + 0.75 * 0.96875,
    ]


def test_scaffold_uniform() -> None:
    world = World(Scaffold, [A, B], [1.0], rounds=1, options={"uniform": True})
    assert flat(world) == [(0.5 + 3.25) / 2]
    assert world.states[-1].method["control"].item() == (1 - 2.25) / 2


def test_fednova() -> None:
    # a = 1 and 2: 1 - (0.25 + 1.5) * (0.25 * 0.5/1 + 0.75 * (-2.25)/2) = 1 + 1.75 * 0.71875
    # From 2.2578125: A moves by 1.12890625, B by -1.306640625: the sum is 0.2822265625 - 0.489990234375
    expected = [2.2578125, 2.2578125 + 1.75 * 0.207763671875]
    assert flat(World(FedNova, [A, B], [1.0])) == pytest.approx(expected, abs=1e-14)


def test_fedavgm() -> None:
    # v = 1 - 2.5625 = -1.5625; then the mean is 3.05078125, v = 0.9 * -1.5625 - 0.48828125 = -1.89453125
    assert flat(World(FedAvgM, [A, B], [1.0])) == pytest.approx([2.5625, 2.5625 + 1.89453125], abs=1e-14)
    # the server step's own numbers are the default: v = 0.5 * -1.5625 - 0.48828125
    general = World(FedAvgM, [A, B], [1.0], at_server={"server_beta": 0.5})
    assert flat(general) == pytest.approx([2.5625, 2.5625 + 0.5 * 1.5625 + 0.48828125], abs=1e-14)
    # eta 0.5, beta 0: half of the way
    assert flat(World(FedAvgM, [A, B], [1.0], rounds=1, options={"beta": 0.0, "eta": 0.5})) == [1 + 0.5 * 1.5625]


def test_merges_and_server_steps_compose_with_any_method() -> None:
    both = {"merge": MERGES["normalised"], "server_step": SERVER_STEPS["momentum"]}
    # round 1 of FedNova moved by 1.2578125; round 2 by 0.36358642578125, to which 0.9 of the first is added
    expected = [2.2578125, 2.2578125 + 1.75 * 0.207763671875 + 0.9 * 1.2578125]
    assert flat(World(FedAvg, [A, B], [1.0], plan=both)) == pytest.approx(expected, abs=1e-14)
    prox = World(FedProx, [A, B], [1.0], options={"mu": 1.0}, plan={"server_step": SERVER_STEPS["momentum"]})
    assert flat(prox) == pytest.approx([2.0, 2.0 + 0.9 * 1.0 + 0.5], abs=1e-14)


def test_moon() -> None:
    # One step each, two dimensions. Round 1 has no previous model: FedAvg. A, with b = (1, 0): (1, 1) -> (1, 0.5);
    # B, with b = (0, 1): (0.5, 1). Equal shares: (0.75, 0.75).
    clients = [Client([1.0, 1.0], [1.0, 0.0]), Client([1.0, 1.0], [0.0, 1.0])]
    world = World(Moon, clients, [1.0, 1.0], options={"mu": 2.0})
    assert world.path[0] == [0.75, 0.75]
    # Round 2, A: z = global = (0.75, 0.75), previous (1, 0.5): cosines 1 and s = 1.5/sqrt(2 * 1.25).
    # d cos(z, previous)/dz = (previous/|previous| - s z/|z|)/|z|; the term's slope is sigmoid((s - 1)/0.5)/0.5.
    s, length = 1.5 / math.sqrt(2.5), 0.75 * math.sqrt(2)
    slope = 2.0 / (1 + math.exp(-(s - 1) / 0.5)) / 0.5
    pull = [(p / math.sqrt(1.25) - s / math.sqrt(2)) / length for p in (1.0, 0.5)]
    a = [0.75 - 0.5 * (0.75 - b + slope * g) for b, g in zip((1.0, 0.0), pull, strict=True)]
    # B is A mirrored, so the mean of the two is the mean of A's coordinates
    assert world.path[1] == pytest.approx([sum(a) / 2] * 2, abs=1e-12)
    assert world.client_state(0, "previous_params") == pytest.approx(a, abs=1e-12)
    assert world.records[0]["train_contrastive_loss"] == 0.0
    assert world.records[1]["train_contrastive_loss"] == pytest.approx(math.log(1 + math.exp((s - 1) / 0.5)))


def test_fedproc() -> None:
    # c0 of both classes is the start (1, 1) itself: cosines are 1 whatever the class, and turning does not help:
    # with alpha 1 nobody moves. Round 2 at alpha 0.5 takes half a step: A from (1, 1) by 0.25 of (1, 1) - (0, 2).
    clients = [Client([1.0, 1.0], [0.0, 2.0], label=0), Client([1.0, 1.0], [4.0, 2.0], samples=3, label=1)]
    world = World(FedProc, clients, [1.0, 1.0])
    assert world.path[0] == pytest.approx([1.0, 1.0], abs=1e-12)
    # A: (0.75, 1.25), B: (1.75, 1.25); mean by 1/4 and 3/4; prototypes are what each class's holder has
    assert world.path[1] == pytest.approx([1.5, 1.25], abs=1e-12)
    assert world.states[-1].method["prototypes"].tolist() == [pytest.approx([0.75, 1.25]), pytest.approx([1.75, 1.25])]


def test_two_stage() -> None:
    # As FedProc's first round, nobody moves; then the classifier alone (the second parameter) is trained.
    clients = [Client([1.0, 1.0], [0.0, 2.0], label=0), Client([1.0, 1.0], [4.0, 4.0], samples=3, label=1)]
    world = World(TwoStage, clients, [1.0, 1.0])
    assert world.path[0] == pytest.approx([1.0, 1.0], abs=1e-12)
    assert world.path[1] == pytest.approx([1.0, 0.25 * 1.5 + 0.75 * 2.5], abs=1e-12)
    assert [r["alpha"] for r in world.records] == [1.0, 0.0]


def test_solo() -> None:
    # Own starts 1 and 2, momentum 0.5 kept: A: v = 1, w = 0.5; v = 0.5 + 0.5 = 1, w = 0.
    # B (one step a round): v = 2 - 4 = -2, w = 3; v = -1 + (3 - 4) = -2, w = 4.
    clients = [A, Client([1.0], [4.0], samples=3)]
    world = World(Solo, clients, [9.0], momentum=0.5, options={"epochs": 2})
    assert len(world.records) == 2
    assert (world.client_state(0, "params"), world.client_state(1, "params")) == ([0.0], [4.0])
    assert (world.client_state(0, "velocity"), world.client_state(1, "velocity")) == ([1.0], [-2.0])
    assert world.path == [[9.0], [9.0]]  # nothing is merged
    assert world.records[0]["bytes_up"] == 0


def test_solo_trains_its_epochs_whatever_the_rounds() -> None:
    method = Solo(Solo.options_type(epochs=25), ClientProblem(2, 1), ServerProblem(rounds=7, epochs=10))
    assert method.rounds == 3 and [method.phases(t)[0].epochs for t in range(3)] == [10, 10, 5]


def test_central_goes_on_with_its_momentum() -> None:
    # v = 1, w = 0.5; v = 0.5 + 0.5 = 1, w = 0: as one optimisation of two steps
    world = World(Central, [A], [1.0], momentum=0.5)
    assert flat(world) == [0.5, 0.0]
    assert world.client_state(0, "velocity") == [1.0]


def test_learning_rate_schedules() -> None:
    linear = World(FedAvg, [A], [1.0], rounds=4, plan={"lr_schedule": "linear", "lr_floor": 0.1})
    assert [r["lr"] for r in linear.records] == pytest.approx([0.5, 0.4, 0.3, 0.2])
    cosine = World(FedAvg, [A], [1.0], rounds=2, plan={"lr_schedule": "cosine"})
    assert [r["lr"] for r in cosine.records] == pytest.approx([0.5, 0.25])
    assert flat(cosine) == pytest.approx([0.5, 0.375])


def test_averaged_weights() -> None:
    # FedAvg's 2.5625 and 3.05078125; a = 2.5625, then 0.8 * 2.5625 + 0.2 * 3.05078125
    world = World(FedAvg, [A, B], [1.0], plan={"average_weights": 0.8})
    averaged = [state.averaged.params.item() for state in world.states[1:] if state.averaged is not None]
    assert averaged == pytest.approx([2.5625, 0.8 * 2.5625 + 0.2 * 3.05078125], abs=1e-14)
    assert flat(world) == [2.5625, 3.05078125]
    assert "averaged_accuracy" in world.records[0]
    # sent to the clients, round 3 starts there
    sent = World(FedAvg, [A, B], [1.0], rounds=3, plan={"average_weights": 0.8, "send_averaged": True})
    start = averaged[1]
    b = 4 + (start - 4) / 4
    assert flat(sent)[2] == pytest.approx(0.25 * start / 2 + 0.75 * b, abs=1e-14)


def test_effective_steps_by_hand() -> None:
    # along a constant gradient 1 with momentum 0.5: moves 1, 1.5, 1.75; after three steps 4.25
    assert effective_steps(torch.tensor([1, 2, 3]), 0.5).tolist() == pytest.approx([1.0, 2.5, 4.25])
    assert effective_steps(torch.tensor([1, 7]), 0.0).tolist() == [1.0, 7.0]


# identities


@pytest.mark.parametrize(
    ("method", "options", "rounds"),
    [
        ("fedprox", {"fedprox": {"mu": 0.0}}, 3),
        ("moon", {"moon": {"mu": 0.0}}, 3),
        ("scaffold", {}, 1),
    ],
)
def test_identities_bit_for_bit(train: Train, method: str, options: dict[str, Any], rounds: int) -> None:
    images = toy_images(absent=3)
    average = train(images, method="fedavg", rounds=rounds)
    other = train(images, method=method, rounds=rounds, **options)
    assert torch.equal(average.state.weights.params, other.state.weights.params)


@pytest.mark.parametrize("method", ["scaffold", "fedavgm"])
def test_with_one_client_nothing_is_corrected(train: Train, method: str) -> None:
    # SCAFFOLD: c is the one client's c_i to the bit after a round from zero; FedAvgM's first step has no past
    rounds = 2 if method == "scaffold" else 1
    alone = {"clients": 1, "rounds": rounds, "dtype": "float64"}
    average, other = train(method="fedavg", **alone), train(method=method, **alone)
    if method == "scaffold":
        assert torch.equal(average.state.weights.params, other.state.weights.params)
    torch.testing.assert_close(average.state.weights.params, other.state.weights.params, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("fednova", {"partition": "iid", "clients": 4}),  # 40 samples each: equal step counts
        ("fedavgm", {"fedavgm": {"beta": 0.0}}),
    ],
)
def test_identities_to_rounding_in_float64(train: Train, method: str, given: dict[str, Any]) -> None:
    average, other = (train(method=m, rounds=3, dtype="float64", **given) for m in ("fedavg", method))
    difference = (average.state.weights.params - other.state.weights.params).norm()
    assert difference < 1e-12 * average.state.weights.params.norm()
    assert not torch.equal(
        average.state.weights.params, train(method="fedavg", rounds=2, dtype="float64").state.weights.params
    )


def test_fednova_differs_where_step_counts_do(train: Train) -> None:
    average, nova = (train(method=m, dtype="float64").state.weights.params for m in ("fedavg", "fednova"))
    assert (average - nova).norm() > 1e-6 * average.norm()


# SCAFFOLD's own tests (SPEC section 5)


class Linear(Scaffold):
    """A loss whose gradient is b, wherever one is."""

    _quadratic = False

    def loss(self, batch: Any, local: Any) -> Any:
        size = batch.z.shape[-1]
        return {"cross_entropy": Term((batch.logits[..., size:] * batch.z).sum(dim=-1))}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_on_a_linear_loss_the_control_variate_is_the_gradient(momentum: float) -> None:
    clients = [Client([0.0, 0.0], [3.0, -1.0], steps=7), Client([0.0, 0.0], [0.5, 2.0], samples=3, steps=20)]
    world = World(Linear, clients, [1.0, 1.0], rounds=3, lr=0.01, momentum=momentum)
    for place, client in enumerate(clients):
        assert world.client_state(place, "control") == pytest.approx(list(client.b), abs=1e-10)


class WrongDivisor(Scaffold):
    """Divides by tau lr while momentum is on, as the public script does."""

    def _new_control(self, local: Any) -> Any:
        moved = local.start.params - local.weights.params.detach()
        divisor = local.settings["lr"] * local.steps
        return local.state["control"] - local.sent["control"] + moved / divisor


def test_scaffold_beats_fedavg_on_heterogeneous_quadratics_and_the_wrong_divisor_diverges() -> None:
    generator = torch.Generator().manual_seed(0)
    eigenvalues = torch.linspace(0.2, 2.0, 4)
    clients, total, pull = [], torch.zeros(4), torch.zeros(4)
    for _ in range(5):
        h = eigenvalues[torch.randperm(4, generator=generator)]
        b = 3 * torch.randn(4, generator=generator)
        clients.append(Client(h.tolist(), b.tolist(), steps=100))
        total, pull = total + h, pull + h * b
    optimum = (pull / total).double()

    def distance(method: type[FedAvg], lr: float) -> float:
        world = World(method, clients, [0.0] * 4, rounds=20, lr=lr, momentum=0.9)
        return float((world.states[-1].weights.params - optimum).norm())

    for lr in (0.003, 0.01):
        assert distance(Scaffold, lr) < 0.1 * distance(FedAvg, lr)
        assert not distance(WrongDivisor, lr) < 1e3  # far out, or no number at all


# every method on the toy problem


@pytest.mark.parametrize("calibrate", [0.0, 1.0])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_trains(train: Train, method: str, calibrate: float) -> None:
    given = {"solo": {"epochs": 4}, "calibrate": calibrate, "rounds": 2}
    session = train(toy_images(absent=2), method=method, **given)
    assert session.result is not None and session.result["status"] == "finished"
    assert 0 <= session.result["final_accuracy"] <= 1
    record = session.records[-1]
    for name in (
        "balanced_accuracy",
        "macro_f1",
        "auc",
        "client_accuracy_mean",
        "client_accuracy_worst",
        "class_accuracy",
    ):
        assert name in record


def test_calibration_by_hand() -> None:
    # a client with 3 samples of class 0 and none of class 1: log(3/3) = 0 and log(0.5/3)
    offsets = torch.log(torch.tensor([1.0, 0.5 / 3]))
    none = Weights(torch.zeros(1), torch.zeros(0), torch.zeros(0))
    counts = torch.tensor([3.0, 0.0])
    local = Local(none, none, torch.zeros(1), {}, {}, {}, torch.tensor(1), counts, offsets)
    z, logits = torch.zeros(1, 1), torch.tensor([[0.2, -0.1]])
    batch = Batch(z, logits, torch.tensor([0]), None, lambda w: (z, logits))
    plain, calibrated = (
        CheckedClient(FedAvg(Options(), ClientProblem(2, 1, calibrate=g))).loss(batch, local)[0].item()
        for g in (0.0, 2.0)
    )
    assert plain == pytest.approx(math.log(math.exp(0.2) + math.exp(-0.1)) - 0.2)
    shifted = -0.1 + 2 * math.log(0.5 / 3)
    assert calibrated == pytest.approx(math.log(math.exp(0.2) + math.exp(shifted)) - 0.2)


def test_calibration_of_similarities_can_be_switched_alone(train: Train) -> None:
    def params(**given: Any) -> torch.Tensor:
        return train(rounds=2, **given).state.weights.params

    runs = [
        params(),
        params(calibrate=1.0),
        params(calibrate=1.0, calibrate_prototypes=0.0),
        params(calibrate_prototypes=1.0),
    ]
    for i, one in enumerate(runs):
        assert not any(torch.equal(one, other) for other in runs[i + 1 :])


def test_log_shares_are_of_the_clients_own_counts(train: Train) -> None:
    session = train(toy_images(absent=2), rounds=1)
    data = session.clients[1]
    labels = session.setting.train.labels[data.indices]
    assert data.class_counts.tolist() == torch.bincount(labels, minlength=4).tolist()
    for k, value in enumerate(data.log_shares.tolist()):
        assert value == pytest.approx(math.log(max(int((labels == k).sum()), 0.5) / len(labels)), rel=1e-6)


def test_frozen_features_stay_in_the_second_stage(train: Train) -> None:
    given = {"method": "two-stage", "network": "toy_networks:BatchNormNet", "rounds": 4, "executor": "serial"}
    first, whole = (train(**{**given, "two_stage": {"split": s}}) for s in (0.5, 0.5))
    assert torch.equal(first.state.weights.params, whole.state.weights.params)
    span = whole.setting.layout.span("classifier.")
    assert span.stop - span.start == 256 * 4 + 4
    stage_one = train(**{**given, "rounds": 2, "two_stage": {"split": 1.0}})
    frozen = whole.state.weights.params.clone()
    frozen[span] = stage_one.state.weights.params[span]
    torch.testing.assert_close(frozen, stage_one.state.weights.params)
    torch.testing.assert_close(whole.state.weights.buffers, stage_one.state.weights.buffers)
    assert not torch.equal(whole.state.weights.params[span], stage_one.state.weights.params[span])


def test_frozen_features_stay_whatever_momentum_the_server_has(train: Train) -> None:
    given = {"method": "two-stage", "rounds": 4, "server_step": "momentum"}
    first = train(**{**given, "rounds": 2, "two_stage": {"split": 1.0}})
    whole = train(**given)
    span = whole.setting.layout.span("classifier.")
    assert torch.equal(whole.state.weights.params[: span.start], first.state.weights.params[: span.start])
