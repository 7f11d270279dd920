"""The executors agree: random choices identical, weights within rounding (DESIGN, "the same numbers")."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from conftest import ToyLibrary, Train, toy_experiment, toy_images, toy_session
from torch import Tensor

from fedproc import InputError
from fedproc.kernels import cpu
from fedproc.lanes import Job, choose, resolve_precision, using_precision
from fedproc.lanes.captured import CapturedLanes
from fedproc.lanes.executor import Done
from fedproc.lanes.stacked import StackedExecutor
from fedproc.methods import METHODS
from fedproc.methods.prototype_classifier import PrototypeClassifier
from fedproc.protocol.diagnostics import Diagnostics
from fedproc.protocol.task import Kind
from fedproc.simulation.drive import drive
from fedproc.simulation.session import Session

NETWORKS = {"simple-cnn": "simple-cnn", "batch-norm": "toy_networks:BatchNormNet"}
PRESETS = ("paper", "author_code")


def distance(first: Session, second: Session) -> float:
    def vector(session: Session) -> Tensor:
        weights = session.state.weights
        return torch.cat([weights.params, weights.buffers]).double().cpu()

    a, b = vector(first), vector(second)
    return float((a - b).norm() / a.norm())


def shown(session: Session) -> tuple[Tensor, Tensor]:
    """The prototypes that the last evaluation used."""
    state, method = session.state, session.plan.method
    return method.prototypes(state.method) or Diagnostics.shown(state.diagnostics, 4, 256, state.weights.params)


def agree(train: Train, tolerance: float, device: str = "cpu", **given: object) -> None:
    """Serial against stacked in two shapes, on ragged clients, some smaller than a batch, one class held by nobody."""
    images = toy_images(absent=2)
    serial = train(images, "serial", 1, device=device, **given)
    for lanes in (4, 3):
        stacked = train(images, "stacked", lanes, device=device, **given)
        assert distance(serial, stacked) < tolerance
        assert torch.equal(serial.state.weights.counters, stacked.state.weights.counters)
        for one, other in zip(serial.records, stacked.records, strict=True):
            assert one["samples"] == other["samples"] and one["bytes_up"] == other["bytes_up"]
            assert one["train_loss"] == pytest.approx(other["train_loss"], rel=max(1e-4, tolerance))
        (prototypes, known), (others, known_too) = shown(serial), shown(stacked)
        assert torch.equal(known, known_too)
        assert not known[2] or isinstance(
            serial.plan.method.method, PrototypeClassifier
        )  # which knows all from the start
        assert (prototypes - others).norm() < 10 * tolerance * prototypes.norm()


def test_the_toy_problem_is_ragged() -> None:
    sizes = toy_session(toy_images(absent=2)).client_sizes
    assert min(sizes) < 16 < max(sizes) and len({s // 16 for s in sizes}) > 1


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", ["fedavg", "fedproc"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_serial_and_stacked_agree(
    train: Train, network: str, method: str, preset: str, dtype: str, tolerance: float
) -> None:
    agree(train, tolerance, network=NETWORKS[network], method=method, preset=preset, dtype=dtype, rounds=2, lr=0.01)


RIVALS = sorted(set(METHODS) - {"fedavg", "fedproc", "solo"})
PLAIN = ("fedma",)  # for networks without batch-norm alone
FLOAT32 = ("central", "fedavgm", "fednova", "fedprox", "moon", "scaffold", "two-stage")  # the others in the slow tests
ROUGH = {"feddecorr": 1e-3}  # in float32: of two samples its gradient is 0 but for rounding, over small deviations
QUICK = ("ditto", "fedma", "fedtgp", "fine-tuning")  # with one network; test_own_models has all executors
AGREEING = [
    pytest.param(network, method, dtype, tolerance, marks=[] if quick else pytest.mark.slow)
    for network in NETWORKS
    for method in RIVALS
    for dtype, tolerance, quick in (
        ("float64", 1e-9, method not in QUICK or network == "simple-cnn"),
        ("float32", ROUGH.get(method, 1e-5), method in FLOAT32),
    )
    if network != "batch-norm" or method not in PLAIN
]


def skip_misfits(network: str, method: str) -> None:
    if method in PLAIN and network == "batch-norm":
        pytest.skip(f"{method} is for networks without batch-norm")


@pytest.mark.parametrize(("network", "method", "dtype", "tolerance"), AGREEING)
def test_every_rival_agrees(train: Train, network: str, method: str, dtype: str, tolerance: float) -> None:
    agree(train, tolerance, network=NETWORKS[network], method=method, dtype=dtype, rounds=2, lr=0.01, calibrate=0.5)


@pytest.mark.parametrize("network", NETWORKS)
def test_solo_agrees(train: Train, network: str) -> None:
    given = {"method": "solo", "solo": {"epochs": 3}, "network": NETWORKS[network], "dtype": "float64", "lr": 0.01}
    images = toy_images(absent=2)
    serial, stacked = train(images, "serial", 1, **given), train(images, "stacked", 3, **given)
    for client in range(5):
        one, other = serial.states.get(client), stacked.states.get(client)
        assert one is not None and other is not None
        for name in ("params", "buffers", "velocity"):
            assert (one[name] - other[name]).norm() <= 1e-9 * one["params"].norm()
    assert serial.records[-1]["test_accuracy"] == stacked.records[-1]["test_accuracy"]


def test_pooled_runs_that_differ_in_calibration_do_not_share_lanes() -> None:
    images = toy_images()
    ends = {}
    for executor, lanes in (("serial", 1), ("stacked", 10)):
        sessions = [toy_session(images, method="fedavg", calibrate=gamma, dtype="float64") for gamma in (0.0, 1.0)]
        library = ToyLibrary(images)
        sessions = [Session(session.experiment, library) for session in sessions]
        made = choose(executor, lanes, 1, [session.setting for session in sessions], 10)
        drive(sessions, made)
        made.close()
        ends[executor] = sessions
    assert distance(*ends["serial"]) > 1e-3
    for serial, stacked in zip(ends["serial"], ends["stacked"], strict=True):
        assert distance(serial, stacked) < 1e-9


def side_by_side(executor: str, lanes: int, methods: list[str], **given: object) -> list[Session]:
    """Sessions of several methods, driven together."""
    library = ToyLibrary(toy_images(absent=2))
    sessions = [Session(toy_experiment(method=method, **given), library, method) for method in methods]
    made = choose(executor, lanes, 1, [session.setting for session in sessions], 5 * len(methods))
    drive(sessions, made)
    made.close()
    return sessions


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("lanes", [30, 4])
def test_methods_share_the_lanes_of_one_network(network: str, lanes: int) -> None:
    methods = ["fedavg", "fedprox", "scaffold", "moon", "fedproc", "two-stage"]
    methods += ["feddyn", "fedntd", "fedlc", "feddecorr", "fednh", "fedsam"]  # fednh and fedsam in lanes of their own
    given = {"network": NETWORKS[network], "dtype": "float64", "lr": 0.01}
    alone = side_by_side("serial", 1, methods, **given)
    for one, other in zip(alone, side_by_side("stacked", lanes, methods, **given), strict=True):
        assert distance(one, other) < 1e-9
        assert one.records[-1]["test_accuracy"] == other.records[-1]["test_accuracy"]
        for name in ("train_loss", "client_drift"):
            assert one.records[-1][name] == pytest.approx(other.records[-1][name], rel=1e-6)


def test_all_train_together_however_much_they_ask_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedProc asks for prototypes first, FedAvg for diagnostic ones after each round; rounds stay in step."""
    trained: list[set[str]] = []
    execute = StackedExecutor.execute

    def spy(self: StackedExecutor, jobs: Sequence[Job], done: Done) -> None:
        trained.append({job.setting.method.method.name for job in jobs if job.task.kind is Kind.TRAIN})
        execute(self, jobs, done)

    monkeypatch.setattr(StackedExecutor, "execute", spy)
    side_by_side("stacked", 10, ["fedavg", "fedproc", "fedprox"], rounds=3)
    assert [names for names in trained if names] == [{"fedavg", "fedproc", "fedprox"}] * 3


STREAMED = ("fedavg", "fedproc", "moon", "scaffold", "two-stage")


@pytest.mark.parametrize(
    ("network", "method"),
    [(network, method) for network in NETWORKS for method in STREAMED]
    + [("simple-cnn", method) for method in RIVALS if method not in STREAMED]
    + [pytest.param("batch-norm", m, marks=pytest.mark.slow) for m in RIVALS if m not in (*STREAMED, *PLAIN)],
)
def test_streamed_agrees(train: Train, network: str, method: str) -> None:
    given = {"method": method, "network": "resnet18" if network == "batch-norm" else "simple-cnn", "width": 8}
    given |= {"dtype": "float64", "lr": 0.01, "epochs": 1, "preset": "author_code"}
    images = toy_images(absent=2)
    serial = train(images, "serial", 1, **given)
    for lanes in (3, 1):
        assert distance(serial, train(images, "streamed", lanes, **given)) < 1e-9


def test_a_network_of_ones_own_is_not_streamed(train: Train) -> None:
    with pytest.raises(InputError, match="use stacked or serial"):
        train(executor="streamed", network="toy_networks:BatchNormNet")


@pytest.mark.parametrize("executor", ["stacked", "streamed"])
def test_out_of_memory_halves_the_lanes(monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    """A device that holds two lanes at most: the run goes on with as many, and says so."""
    library = ToyLibrary(toy_images())
    run_it, held = CapturedLanes.run, []

    def small(lanes: CapturedLanes, steps: int) -> None:
        held.append(lanes)
        if sum(lanes.lanes) > 2 or (executor == "streamed" and len({id(each) for each in held}) > 2):
            held.clear()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
        run_it(lanes, steps)

    monkeypatch.setattr(CapturedLanes, "run", small)
    ends = {}
    for kind, lanes in ((executor, 5), ("serial", 1)):
        session = Session(toy_experiment(dtype="float64"), library)
        made = choose(kind, lanes, 1, [session.setting], 5)
        drive([session], made)
        ends[kind] = session
        if kind == executor:
            assert made.lanes <= 2
            assert any("out of memory, from here on 2 lanes" in note for note in session.notes)
    assert distance(ends[executor], ends["serial"]) < 1e-9


def test_streamed_lanes_are_no_more_than_streams() -> None:
    setting = toy_session(toy_images()).setting
    assert choose("streamed", 32, 1, [setting], 40).lanes == 32
    with pytest.raises(InputError, match="lanes 33: expected at most 32 with streamed lanes"):
        choose("streamed", 33, 1, [setting], 40)


def test_padded_lanes_do_not_poison_a_deep_network(train: Train) -> None:
    given = {"network": "resnet18", "width": 8, "preset": "author_code", "epochs": 1, "rounds": 1, "lr": 0.01}
    images = toy_images(absent=2)
    serial, stacked = (
        train(images, executor, 1 if executor == "serial" else 5, **given) for executor in ("serial", "stacked")
    )
    assert serial.records[0]["clients"] == stacked.records[0]["clients"] == 5
    assert distance(serial, stacked) < 1e-2


@pytest.mark.parametrize("method", ["fedavg", "fedproc"])
def test_resnet18_agrees_in_float64(train: Train, method: str) -> None:
    agree(train, 1e-9, network="resnet18", width=8, method=method, dtype="float64", epochs=1, lr=0.01)


def test_augmented_colour_images_agree(train: Train) -> None:
    images = toy_images(channels=3, side=20)
    given = {"augment": "crop-flip-rotate", "dtype": "float64"}
    serial = train(images, "serial", 1, **given)
    assert distance(serial, train(images, "stacked", 4, **given)) < 1e-9
    assert distance(serial, train(images, "serial", 1, augment="none", dtype="float64")) > 1e-3


EVERY = "crop-flip-rotate,flip-vertical,colour"
OPTIMIZERS = {
    "adam": {"optimizer": "adam", "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw"},
    "weighted": {"class_weights": "balanced", "smallest_class": 8},  # what is not told makes the totals differ
    "weighted by own counts": {"class_weights": "own"},
}


@pytest.mark.parametrize("channels", [1, 3])
def test_all_augmentations_agree(train: Train, channels: int) -> None:
    images = toy_images(channels=channels, side=20)
    serial = train(images, "serial", 1, augment=EVERY, dtype="float64")
    for executor in ("stacked", "streamed"):
        assert distance(serial, train(images, executor, 4, augment=EVERY, dtype="float64")) < 1e-9
    without = EVERY.removesuffix(",colour")
    assert distance(serial, train(images, "serial", 1, augment=without, dtype="float64")) > 1e-5


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("method", ["fedavg", "fedproc"])
def test_optimizers_and_class_weights_agree(train: Train, method: str, how: str, network: str) -> None:
    given = {"network": NETWORKS[network], "method": method, "dtype": "float64", "lr": 0.002, **OPTIMIZERS[how]}
    agree(train, 1e-9, **given)
    images = toy_images(absent=2)
    if network == "simple-cnn":
        serial = train(images, "serial", 1, **given)
        assert distance(serial, train(images, "streamed", 2, **given)) < 1e-9
        plain = {**given, "optimizer": "sgd", "momentum": 0.9, "class_weights": "none"}
        assert distance(serial, train(images, "serial", 1, **plain)) > 1e-6


ADAM_ALLOWED = [
    name for name in RIVALS if name not in {"scaffold", "fednova", "feddc", "scaffold+fedproc", "mime-lite"}
]


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m in ("fedrep", "fedsam") else pytest.mark.slow) for m in ADAM_ALLOWED]
)
def test_every_method_that_allows_it_agrees_with_adam_and_class_weights(train: Train, method: str) -> None:
    given = {"method": method, "optimizer": "adam", "dtype": "float64", "lr": 0.002, **OPTIMIZERS["weighted"]}
    images = toy_images(absent=2)
    serial = train(images, "serial", 1, **given)
    for executor in ("stacked", "streamed"):
        assert distance(serial, train(images, executor, 3, **given)) < 1e-9


def test_methods_share_lanes_with_adam() -> None:
    methods = ["fedavg", "fedprox", "moon", "fedproc", "two-stage"]
    given = {"dtype": "float64", "lr": 0.002, "optimizer": "adamw", **OPTIMIZERS["weighted"]}
    alone = side_by_side("serial", 1, methods, **given)
    for one, other in zip(alone, side_by_side("stacked", 7, methods, **given), strict=True):
        assert distance(one, other) < 1e-9


def test_solo_carries_adam_over_the_rounds(train: Train) -> None:
    """Three rounds of an epoch are one of three: all that Adam keeps goes on, its count of updates too."""
    given = {"method": "solo", "solo": {"epochs": 3}, "optimizer": "adam", "dtype": "float64", "lr": 0.01}
    images = toy_images(absent=2)
    ends = [train(images, "serial", 1, epochs=1, **given), train(images, "stacked", 3, epochs=1, **given)]
    for client in range(5):
        states = [session.states.get(client) for session in ends]
        for name in ("params", "velocity", "squares"):
            one, other = (state[name] for state in states if state is not None)
            assert (one - other).norm() <= 1e-9 * one.norm()
        updates = {int(state["updates"]) for state in states if state is not None}
        assert updates == {3 * max(1, len(ends[0].clients[client]) // 16)}


def test_the_same_seed_gives_the_same_bits_with_everything_on(train: Train) -> None:
    given = {"optimizer": "adamw", "class_weights": "balanced", "augment": EVERY}
    for executor, lanes in (("serial", 2), ("stacked", 3)):
        one, two = (train(executor=executor, lanes=lanes, **given) for _ in range(2))
        assert torch.equal(one.state.weights.params, two.state.weights.params)
        assert not torch.equal(one.state.weights.params, train(executor=executor, lanes=lanes, seed=1, **given)
                               .state.weights.params)  # fmt: skip


@pytest.mark.skipif(cpu.without_bf16() is not None, reason="the processor has no bf16")
@pytest.mark.parametrize("network", ["simple-cnn", "resnet18"])
def test_bf16_on_a_cpu_learns_what_float32_learns(train: Train, network: str) -> None:
    given = {"network": network, "width": 8, "lr": 0.01, "rounds": 2, "normalize_z": True, "method": "fedavg"}
    ends = {}
    for precision in ("fp32", "bf16"):
        with using_precision(precision):
            ends[precision] = train(toy_images(), "serial", 1, **given).state.weights.params
    assert 0 < float((ends["bf16"] - ends["fp32"]).norm() / ends["fp32"].norm()) < 0.1


def test_bf16_on_a_cpu_is_refused_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    here = torch.device("cpu")
    with pytest.raises(InputError, match="precision bf16: on a CPU it is for serial lanes, not stacked ones"):
        resolve_precision("bf16", here, "stacked")
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": False, "avx2": True})
    with pytest.raises(InputError, match="precision bf16: would be slower than fp32 here: the processor has no bf16"):
        resolve_precision("bf16", here, "serial")
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": True})
    assert resolve_precision("bf16", here, "serial") == "bf16"
    assert resolve_precision("auto", here, "serial") == "fp32"


def test_serial_does_not_depend_on_the_number_of_lanes(train: Train) -> None:
    one, two = (train(executor="serial", lanes=lanes, rounds=2) for lanes in (1, 2))
    assert torch.equal(one.state.weights.params, two.state.weights.params)


def test_sampled_clients_agree(train: Train) -> None:
    given = {"sample": 0.5, "clients": 6, "min_size": 3, "rounds": 4, "dtype": "float64"}
    assert distance(train(executor="serial", **given), train(executor="stacked", lanes=3, **given)) < 1e-9


def test_dropout_runs_serially_and_repeats(train: Train) -> None:
    one, two = (train(network="toy_networks:DropoutNet", rounds=2) for _ in range(2))
    assert torch.equal(one.state.weights.params, two.state.weights.params)
    with pytest.raises(InputError, match=r"cannot be stacked.*use executor serial"):
        train(executor="stacked", lanes=2, network="toy_networks:DropoutNet")


def test_frozen_parameters_stay(train: Train) -> None:
    session = train(network="toy_networks:FrozenNet", rounds=2)
    named = session.setting.layout.named(session.state.weights)
    start = dict(session.setting.network.named_parameters())
    assert torch.equal(named["encoder.first.weight"], start["encoder.first.weight"])
    assert not torch.equal(named["encoder.second.weight"], start["encoder.second.weight"])


@pytest.mark.parametrize("executor", ["serial", "stacked"])
@pytest.mark.parametrize("method", ["fedavg", "fedproc"])
@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ({"classes": 1, "per_class": 60}, {"beta": 1.0}),
        ({}, {"clients": 1}),
        ({"per_class": 5}, {"clients": 4, "min_size": 1, "batch_size": 64}),
        ({"per_class": 3}, {"clients": 4, "min_size": 1, "beta": 0.3, "network": "toy_networks:BatchNormNet"}),
    ],
    ids=["one class", "one client", "all smaller than a batch", "tiny clients with batch-norm"],
)
def test_edges_work(train: Train, shape: dict[str, int], given: dict[str, object], method: str, executor: str) -> None:
    lanes = 2 if executor == "stacked" else 1
    session = train(toy_images(**shape), executor, lanes, method=method, **given)
    assert session.result is not None and session.result["status"] == "finished"
    assert 0 <= session.result["final_accuracy"] <= 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("method", ["fedavg", "fedproc", *RIVALS])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_executors_agree_on_a_gpu(train: Train, network: str, method: str, dtype: str, tolerance: float) -> None:
    skip_misfits(network, method)
    given = {"network": NETWORKS[network], "method": method, "dtype": dtype, "lr": 0.01}
    if method == "feddecorr":  # divides by the deviation of features, some of which hardly vary: 4 ulp become 6e-4
        tolerance *= 1000
    agree(train, tolerance, device="cuda", **given)
    images = toy_images(absent=2)
    assert distance(train(images, device="cpu", **given), train(images, device="cuda", **given)) < tolerance


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("how", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
def test_optimizers_and_class_weights_agree_on_a_gpu(
    train: Train, network: str, how: str, dtype: str, tolerance: float
) -> None:
    """Adam divides gradients that are rounding alone (of biases before a batch-norm) by their size, unless its epsilon
    is above it.
    """
    given = {"network": NETWORKS[network], "method": "fedproc", "dtype": dtype, "lr": 0.002, **OPTIMIZERS[how]}
    given |= {"adam_epsilon": 1e-4} if dtype == "float32" and given.get("optimizer", "sgd") != "sgd" else {}
    images = toy_images(absent=2)
    serial = train(images, device="cpu", **given)
    executors = [("serial", 1), ("stacked", 4), *([("streamed", 2)] if network == "simple-cnn" else [])]
    for executor, lanes in executors:
        with using_precision("fp32"):
            found = train(images, executor, lanes, device="cuda", **given)
        assert distance(serial, found) < tolerance


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_all_augmentations_agree_on_a_gpu(train: Train, channels: int, dtype: str, tolerance: float) -> None:
    images = toy_images(channels=channels, side=20)
    given = {"augment": EVERY, "dtype": dtype, "lr": 0.01}
    serial = train(images, device="cpu", **given)
    for executor, lanes in (("serial", 1), ("stacked", 4), ("streamed", 4)):
        with using_precision("fp32"):
            found = train(images, executor, lanes, device="cuda", **given)
        assert distance(serial, found) < tolerance


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_solo_carries_adam_on_a_gpu(train: Train) -> None:
    given = {"method": "solo", "solo": {"epochs": 3}, "optimizer": "adam", "dtype": "float64", "lr": 0.01, "epochs": 1}
    one, other = (train(toy_images(), "stacked", 3, device=device, **given) for device in ("cpu", "cuda"))
    for client in range(5):
        here, there = one.states.get(client), other.states.get(client)
        assert here is not None and there is not None and int(here["updates"]) == int(there["updates"])
        assert (here["params"] - there["params"].cpu()).norm() <= 1e-9 * here["params"].norm()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_pooled_and_streamed_lanes_agree_on_a_gpu(train: Train) -> None:
    methods = ["fedavg", "fedprox", "scaffold", "moon", "fedproc"]
    given = {"device": "cuda", "lr": 0.01}
    for one, other in zip(
        side_by_side("serial", 1, methods, **given), side_by_side("stacked", 30, methods, **given), strict=True
    ):
        assert distance(one, other) < 1e-5
    images = toy_images(absent=2)
    given |= {"network": "resnet18", "width": 8, "epochs": 1, "dtype": "float64", "calibrate": 0.5}
    serial = train(images, "serial", 1, **given)
    for _ in range(5):  # lanes that got into each other's way would not do so every time
        assert distance(serial, train(images, "streamed", 3, **given)) < 1e-9


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize(("executor", "network"), [("stacked", "simple-cnn"), ("streamed", "resnet18")])
def test_bf16_learns_what_float32_learns(train: Train, executor: str, network: str) -> None:
    given = {"device": "cuda", "network": network, "width": 16, "lr": 0.01, "rounds": 4, "normalize_z": True}
    ends = {}
    for precision in ("fp32", "bf16"):
        with using_precision(precision):
            ends[precision] = train(toy_images(side=28), executor, 3, **given)
    moved = {name: session.state.weights.params for name, session in ends.items()}
    assert 0 < float((moved["bf16"] - moved["fp32"]).norm() / moved["fp32"].norm()) < 0.2
    assert abs(ends["bf16"].records[-1]["test_accuracy"] - ends["fp32"].records[-1]["test_accuracy"]) <= 0.15


@pytest.mark.parametrize(("cores", "each"), [(8, 4), (2, 1), (1, 1)])
def test_serial_lanes_continue_with_the_threads_they_had(
    monkeypatch: pytest.MonkeyPatch, cores: int, each: int
) -> None:
    monkeypatch.setattr("fedproc.lanes.cores", lambda: cores)
    setting = toy_session(network="resnet18", width=4).setting
    made = choose("serial", 2, None, [setting], 5)
    again = choose("serial", made.lanes, made.threads, [setting], 5)
    assert (made.threads, again.threads, again.lanes) == (each, each, 2)


def test_a_lane_of_the_small_network_has_one_thread_unless_torch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedproc.lanes.cores", lambda: 8)
    small, large = toy_session(dtype="float32").setting, toy_session(network="resnet18", width=4).setting
    exact = toy_session(dtype="float64").setting
    lanes = [choose("serial", 1, None, settings, 1) for settings in ([small], [large], [exact], [small, large])]
    assert [made.threads for made in lanes] == [1, 8, 8, 8]
    assert choose("serial", 1, 4, [small], 1).threads == 4  # as it had before
    monkeypatch.setattr("fedproc.lanes.cpu.missing", lambda: "no compiler")
    assert choose("serial", 1, None, [small], 1).threads == 8


def test_stacked_lanes_do_without_torchs_symbolic_shapes() -> None:
    """They take seconds to import, which every worker would wait for."""
    code = (
        "import sys; from fedproc import Experiment; from fedproc.simulation.preparation import Library\n"
        "from fedproc.simulation.session import Session; from fedproc.lanes.stacked import check_stackable\n"
        "check_stackable(Session(Experiment(device='cpu', data='fashion-mini'), Library()).setting)\n"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
