"""The contract of a method: what it can say is heard in every executor, and what breaks it is named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ToyLibrary, Train, fedproc, toy_experiment, toy_images
from quadratics import Client, World
from torch import Tensor

from fedproc import Experiment, InputError
from fedproc.errors import MethodError
from fedproc.lanes import choose
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedproc import FedProc
from fedproc.methods.method import Method, Options
from fedproc.methods.moon import Moon
from fedproc.methods.robust import Median
from fedproc.methods.scaffold import Scaffold
from fedproc.protocol.payload import Payload, Tensors
from fedproc.protocol.postprocess import Postprocessor
from fedproc.protocol.task import Kind, Task
from fedproc.simulation.drive import drive
from fedproc.simulation.session import Session

TOYS = Path(__file__).resolve().parent.parent / "toy_methods.py"
BOTH = Path(__file__).resolve().parent.parent.parent / "examples" / "both.py"
EXECUTORS = (("serial", 1), ("stacked", 3), ("streamed", 2))
SMALL = ["--data", "fashion-mini", "--clients", "3", "--rounds", "2", "--epochs", "1", "--batch-size", "128"]


def toys(method: str, **given: Any) -> dict[str, Any]:
    return {"method": method, "plugin": [TOYS], "dtype": "float64", "lr": 0.01, **given}


def distance(one: Session, other: Session) -> float:
    a, b = one.state.weights, other.state.weights
    flat = [torch.cat([w.params, w.buffers]) for w in (a, b)]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())


# what it can say


@pytest.mark.parametrize(
    "method",
    [
        "remembers",
        "by-rounds",
        "sends-later",
        "own-classifier",
        "counts-classes",
        "distils",
        "sharp",
        "second-model",
        "two-phases",
        "closing",
        "every-other",
    ],
)
def test_executors_agree_on_every_part_of_the_contract(train: Train, method: str) -> None:
    images = toy_images(absent=2)
    ends = {name: train(images, name, lanes, **toys(method, rounds=3)) for name, lanes in EXECUTORS}
    plain = train(images, **toys("fedavg", rounds=3))
    assert distance(plain, ends["serial"]) > 1e-6 or method in ("closing", "second-model")  # which leave it as it is
    for name, end in ends.items():
        assert end.result is not None and end.result["status"] == "finished", end.result
        assert distance(ends["serial"], end) < 1e-9, name
        for client in range(5):
            one, other = ends["serial"].states.get(client) or {}, end.states.get(client) or {}
            assert set(one) == set(other)
            for key, tensor in one.items():
                assert (tensor.double() - other[key].double()).norm() <= 1e-9 * max(1.0, float(tensor.double().norm()))


@pytest.mark.parametrize(("executor", "lanes"), EXECUTORS)
def test_two_methods_are_combined_by_naming_them(train: Train, executor: str, lanes: int) -> None:
    given = {"method": "both", "plugin": [BOTH], "dtype": "float64", "rounds": 3, "lr": 0.01}
    both = train(executor=executor, lanes=lanes, **given)
    assert both.result is not None and both.result["status"] == "finished"
    assert "control" in both.state.method and both.records[-1]["train_decorrelation"] > 0
    serial = train(**given)
    assert distance(serial, both) < 1e-9
    for alone in ("scaffold", "feddecorr"):
        assert distance(train(**{**given, "method": alone}), serial) > 1e-6
    # beta 0 leaves SCAFFOLD, and a single client has nothing to correct: FedDecorr
    scaffold = train(**{**given, "method": "scaffold"})
    assert distance(train(**{**given, "both": {"beta": 0.0}}), scaffold) < 1e-12
    single = {**given, "clients": 1}
    assert distance(train(**{**single, "method": "feddecorr"}), train(**single)) < 1e-12


def test_the_order_of_combined_methods_does_not_lose_a_loss(train: Train, tmp_path: Path) -> None:
    path = tmp_path / "orders.py"
    options = "class Options(fedproc.Options):\n    mu: float = 1.0\n"
    path.write_text(
        "from fedproc.methods import fedproc\nfrom fedproc.methods.fedproc import FedProc\n"
        f"from fedproc.methods.moon import Moon\n{options}"
        "class A(Moon, FedProc):\n    name = 'a'\n    options_type = Options\n"
        "class B(FedProc, Moon):\n    name = 'b'\n    options_type = Options\n"
    )
    given = {"plugin": [path], "dtype": "float64", "rounds": 3}
    one, other = (train(method=method, **given) for method in ("a", "b"))
    assert one.records[-1]["train_contrastive_loss"] > 0 and one.records[-1]["train_prototype_loss"] > 0
    assert distance(one, other) < 1e-12


def test_options_of_the_same_name_must_be_settled() -> None:
    with pytest.raises(TypeError, match=r"both .* have an option tau; give the class an options_type of its own"):
        type("Both", (Moon, FedProc), {})
    merged = type("Both", (Scaffold, FedProc), {})
    assert {"uniform", "tau", "alpha"} <= set(merged.options_type.model_fields)


def test_a_mask_of_personal_parameters(train: Train) -> None:
    images = toy_images(absent=2)
    mine = train(images, **toys("own-classifier", rounds=3))
    span = mine.setting.layout.span("classifier.")
    begun = mine.setting.layout.read(mine.setting.network).params
    assert torch.equal(mine.state.weights.params[span], begun[span])  # the server never saw another
    heads = [state["params"][span] for client in range(5) if (state := mine.states.get(client)) is not None]
    assert len(heads) == 5 and not any(torch.equal(heads[0], head) for head in heads[1:])
    shared = len(begun) - (span.stop - span.start)
    assert mine.records[0]["bytes_up"] == 5 * (8 * shared + 16 + 16)  # parameters, two losses, two counts
    assert {"own_accuracy", "test_accuracy"} <= set(mine.records[-1])


def test_an_empty_mask_is_fedavg_and_a_full_one_is_training_alone(train: Train) -> None:
    images = toy_images()
    average = train(images, **toys("fedavg"))
    assert torch.equal(average.state.weights.params, train(images, **toys("own-norms")).state.weights.params)
    alone = train(images, **toys("alone", rounds=2))
    # client 0 by itself: one client with its samples, from the same start, for as many rounds
    share = alone.clients[0].indices.tolist()
    rest = [i for i in range(160) if i not in share]
    assert alone.records[-1]["bytes_up"] == 0
    state = alone.states.get(0)
    assert state is not None and len(share) + len(rest) == 160
    begun = alone.setting.layout.read(alone.setting.network).params
    assert torch.equal(alone.state.weights.params, begun) and not torch.equal(state["params"], begun)


def test_own_norms_are_chosen_by_the_layer(train: Train) -> None:
    session = train(**toys("own-norms", network="toy_networks:BatchNormNet", rounds=2))
    names = [name for name, layer in session.setting.layout.layers if "BatchNorm" in layer]
    assert any(name.endswith("running_mean") for name in names) and any(name.endswith("weight") for name in names)
    named = session.setting.layout.named(session.state.weights)
    begun = dict(session.setting.network.named_parameters())
    norm = next(name for name in names if name.endswith("norm.weight"))
    assert torch.equal(named[norm], begun[norm])
    assert not torch.equal(named["encoder.conv.weight"], begun["encoder.conv.weight"])


def test_a_second_model_leaves_the_global_one_as_it_is(train: Train) -> None:
    average, ditto = train(**toys("fedavg")), train(**toys("second-model"))
    assert torch.equal(average.state.weights.params, ditto.state.weights.params)
    state = ditto.states.get(0)
    assert state is not None and not torch.equal(state["own_params"], average.state.weights.params)


def test_all_answers_can_be_looked_at_before_they_are_summed_up(train: Train) -> None:
    plain, turned = train(**toys("fedavg", rounds=1)), train(**toys("upside", rounds=1))
    begun = plain.setting.layout.read(plain.setting.network).params
    torch.testing.assert_close(turned.state.weights.params - begun, begun - plain.state.weights.params)
    assert turned.records[0]["client_drift"] == pytest.approx(plain.records[0]["client_drift"])


def test_two_phases_freeze_one_part_each(train: Train) -> None:
    session = train(**toys("two-phases", rounds=1, clients=1))
    layout, state = session.setting.layout, session.states.get(0)
    span, begun = layout.span("classifier."), layout.read(session.setting.network).params
    assert state is not None and not torch.equal(state["params"][span], begun[span])
    assert torch.equal(session.state.weights.params[span], begun[span])
    assert not torch.equal(session.state.weights.params[: span.start], begun[: span.start])


def test_a_second_gradient_by_hand() -> None:
    class Uphill(FedAvg):
        name = "uphill"

        def displace(self, gradient: Tensor, local: Any) -> Tensor:
            return 0.1 * gradient

    # h = 1, b = 0, lr 0.5 from 1: the gradient is 1, at 1.1 it is 1.1; 1 - 0.55
    assert World(Uphill, [Client([1.0], [0.0])], [1.0], rounds=1).path == [[pytest.approx(0.45)]]


def test_a_pass_after_the_last_round(train: Train) -> None:
    session = train(**toys("closing", rounds=2))
    assert set(session.records[-1]["final_models"]["halved"]) == {"accuracy", "loss", "prototype_accuracy"}
    assert "final_models" not in session.records[0]
    # class means, counts and covariances of five clients, and how many samples each has
    assert session.records[-1]["closing"]["bytes_up"] == 5 * (8 * (4 * 256 + 4 * 256 * 256) + 8 * 4 + 8)
    assert session.result is not None
    rounds = sum(record["bytes_up"] for record in session.records)
    assert session.result["bytes_up"] == rounds + session.records[-1]["closing"]["bytes_up"]
    assert "spread" not in session.state.method  # what came of it is no part of further rounds


def test_class_means_before_training_as_well(train: Train) -> None:
    given = {"rounds": 3, "dtype": "float64"}
    ends = {n: train(executor=n, lanes=lanes, fedproc={"of": "averaged"}, **given) for n, lanes in EXECUTORS}
    assert distance(train(**given), ends["serial"]) > 1e-6
    assert all(distance(ends["serial"], end) < 1e-9 for end in ends.values())
    # c0 is the class means of w0: the first round is the same, and no pass is asked for twice
    assert ends["serial"].records[0]["train_loss"] == train(**given).records[0]["train_loss"]


def test_prototypes_of_the_averaged_model_by_hand() -> None:
    # c0 of both classes is the start (1, 1) itself, so nobody moves in round 1; in round 2 the means are asked for
    # under (1, 1) again and at alpha 0.5 clients take half a step (see test_rivals.test_fedproc).
    clients = [Client([1.0, 1.0], [0.0, 2.0], label=0), Client([1.0, 1.0], [4.0, 2.0], samples=3, label=1)]
    world = World(FedProc, clients, [1.0, 1.0], options={"of": "averaged"})
    assert world.path[1] == pytest.approx([1.5, 1.25], abs=1e-12)
    assert world.states[-1].method["prototypes"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    asked = [(task.kind, task.round, task.client) for task in world.tasks if task.kind is Kind.CLASS_MEANS]
    assert asked == [(Kind.CLASS_MEANS, t, client) for t in (0, 1) for client in (0, 1)]


def test_a_round_that_asks_nobody_is_legal() -> None:
    class Rests(FedAvg):
        name = "rests"

        def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]:
            return [] if t == 1 else sampled

    world = World(Rests, [Client([1.0], [0.0])], [1.0], rounds=3)
    assert world.path == [[0.5], [0.5], [0.25]]
    assert world.records[1]["clients"] == 0 and "train_loss" not in world.records[1]


def test_a_rule_sees_all_clients_at_once() -> None:
    clients = [Client([1.0], [b], samples=n) for b, n in ((0.0, 1), (4.0, 1), (100.0, 7))]
    assert World(FedAvg, clients, [1.0], rounds=1, plan={"rule": Median(Options())}).path == [[2.5]]


def test_a_server_step_may_have_any_state() -> None:
    class Thirds:
        """Keeps two vectors and a count."""

        def first_state(self, params: Tensor) -> Tensors:
            return {"m": torch.zeros_like(params), "v": torch.ones_like(params), "steps": torch.zeros(1)}

        def step(
            self, start: Tensor, merged: Tensor, state: Tensors, numbers: Mapping[str, float]
        ) -> tuple[Tensor, Tensors]:
            m = state["m"] + (merged - start)
            new = {"m": m, "v": state["v"] * 2, "steps": state["steps"] + 1}
            return start + numbers["lr"] * m / state["v"], new

    # the client halves the distance to 0: from 1 the move is -0.5, m = -0.5, w = 0.5; from 0.5: -0.25, m = -0.75, v = 2
    world = World(FedAvg, [Client([1.0], [0.0])], [1.0], plan={"server_step": Thirds()})
    assert world.path == [[0.5], [0.125]]
    assert world.states[-1].server_step["steps"].item() == 2


def test_there_is_a_place_between_the_sum_and_the_server_step() -> None:
    class Noise(Postprocessor):
        """The server adds a known number to the sum."""

        def at_server(self, start: Tensor, merged: Tensor, round_number: int) -> Tensor:
            return merged + 0.01 * (round_number + 1)

    world = World(FedAvg, [Client([1.0], [0.0])], [1.0], plan={"postprocessors": [Noise()]})
    # 0.5 + 0.01; half of it + 0.02
    assert world.path == [[pytest.approx(0.51)], [pytest.approx(0.275)]]


def test_what_is_sent_can_be_changed_at_the_client(train: Train) -> None:
    class Half(Postprocessor):
        def at_client(self, task: Task, payload: Payload) -> Payload:
            if task.kind is not Kind.TRAIN:
                return payload
            start = task.payload.tensors["params"]
            halved = start + (payload.tensors["params"] - start) / 2
            return Payload({**payload.tensors, "params": halved}, payload.counts)

    library = ToyLibrary(toy_images())
    sessions = [Session(toy_experiment(dtype="float64", rounds=1, method="fedavg"), library) for _ in range(2)]
    sessions[1].plan = replace(sessions[1].plan, postprocessors=[Half()])
    executor = choose("serial", 1, 1, [session.setting for session in sessions], 5)
    drive(sessions, executor)
    executor.close()
    begun = sessions[0].setting.layout.read(sessions[0].setting.network).params
    whole, half = (session.state.weights.params - begun for session in sessions)
    torch.testing.assert_close(half, whole / 2)


def test_the_server_steps_momentum_is_no_business_of_the_methods(train: Train) -> None:
    """A method that keeps a state of its own changes nothing of the server step's."""
    given = {"server_step": "momentum", "rounds": 3, "clients": 1}
    plain, scaffold = train(**toys("fedavg", **given)), train(**toys("scaffold", **given))
    assert distance(plain, scaffold) < 1e-12
    assert distance(plain, train(**toys("fedavg", rounds=3, clients=1))) > 1e-6
    torch.testing.assert_close(plain.state.server_step["velocity"], scaffold.state.server_step["velocity"])


def test_pooled_runs_of_other_rounds_keep_their_own_numbers() -> None:
    def ends(executor: str, lanes: int) -> list[Session]:
        library = ToyLibrary(toy_images())
        sessions = [Session(toy_experiment(**toys("by-rounds", rounds=t)), library, f"T={t}") for t in (1, 2)]
        made = choose(executor, lanes, 1, [session.setting for session in sessions], 10)
        drive(sessions, made)
        made.close()
        return sessions

    for serial, stacked in zip(ends("serial", 1), ends("stacked", 10), strict=True):
        assert distance(serial, stacked) < 1e-9


# what breaks it


@pytest.mark.parametrize(("executor", "lanes"), EXECUTORS)
@pytest.mark.parametrize(
    ("method", "hook", "words"),
    [
        ("scalar-loss", "loss", "expected one value for each client (2,), or for each sample (2, 4)"),
        ("mixes-clients", "loss", "expected one value for each client"),
        ("reads-server", "correct", "only the server's half knows"),
        ("forgets", "receive", "a state without b"),
        ("has-memory", "correct", "a method has no memory"),
        ("raises-later", "collect", "KeyError: 'what was never there'"),
        ("raises-at-client", "reply", "RuntimeError: not enough of it"),
        ("wrong-reply", "reply", "gave extra"),
        ("other-state", "next_client_state", "as it began"),
        ("forgets-one", "align", "an answer for each that was given"),
        ("returns-second", "phases", "that a second model, or one that is not trained, is not returned"),
    ],
)
def test_what_breaks_the_contract_is_named(
    train: Train, executor: str, lanes: int, method: str, hook: str, words: str
) -> None:
    session = train(None, executor, lanes, **toys(method))
    assert session.result is not None and session.result["status"] == "failed"
    reason = session.result["reason"]
    assert f"method {method}, hook `{hook}`" in reason and words in reason
    assert session.result["round"] == (2 if method == "raises-later" else 1)


@pytest.mark.parametrize(("executor", "lanes"), [("serial", 2), ("stacked", 10)])
@pytest.mark.parametrize("failing", ["scalar-loss", "raises-at-client", "raises-later"])
def test_a_run_that_fails_ends_alone(executor: str, lanes: int, failing: str) -> None:
    library = ToyLibrary(toy_images())
    methods = ["fedavg", failing, "scaffold"]
    sessions = [Session(toy_experiment(**toys(method)), library, method) for method in methods]
    made = choose(executor, lanes, 1, [session.setting for session in sessions], 15)
    drive(sessions, made)
    made.close()
    assert [session.result["status"] for session in sessions if session.result] == ["finished", "failed", "finished"]
    for session in (sessions[0], sessions[2]):
        alone = Session(toy_experiment(**toys(session.label)), library)
        single = choose("serial", 1, 1, [alone.setting], 5)
        drive([alone], single)
        single.close()
        assert distance(alone, session) < 1e-9


def test_a_comparison_with_a_failed_run_exits_with_1_and_names_it(tmp_path: Path) -> None:
    words = ["compare", "--plugin", TOYS, "--methods", "fedavg", "raises-later", "--seeds", "0", *SMALL]
    done = fedproc(*words, "--out", tmp_path / "cmp")
    assert done.returncode == 1, done.stderr
    assert "failed: raises-later, seed 0" in done.stderr and "Traceback" not in done.stderr
    assert "1 failed" in done.stdout and "KeyError" in done.stdout
    result = json.loads((tmp_path / "cmp" / "raises-later" / "seed-0" / "result.json").read_text())
    assert result["status"] == "failed" and "hook `collect`" in result["reason"]
    assert json.loads((tmp_path / "cmp" / "fedavg" / "seed-0" / "result.json").read_text())["status"] == "finished"
    again = fedproc("run", "--plugin", TOYS, "--method", "raises-later", *SMALL, "--out", tmp_path / "run")
    assert again.returncode == 1 and "method raises-later, hook `collect`" in again.stderr
    assert again.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def los(self, batch, local):\n        return {}", "Mine.los: no such hook; did you mean loss?"),
        ("def corect(self, gradient, local):\n        return gradient", "did you mean correct?"),
        ("def keep(self, local):\n        return {}", "Mine.keep: is called next_client_state now"),
        ("prototype_pass = 'clean'", "Mine.prototype_pass: is called class_means now"),
        ("def needs_sgd(self, options):\n        return 'x'", "write @classmethod above `def needs_sgd(cls, options)`"),
        ("def needs_mean(self, options):\n        return 'x'", "Mine.needs_mean: is asked of the class"),
        ("def unprotected(self, options):\n        return 'x'", "Mine.unprotected: is asked of the class"),
        ("def holdings(self, shares):\n        return shares", "write @classmethod above `def holdings(cls, shares)`"),
    ],
)
def test_hooks_that_there_are_not_are_refused(body: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(f"from fedproc.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n    {body}\n")
    with pytest.raises(InputError, match=r"plugin .*mine\.py: TypeError") as caught:
        toy_experiment(method="mine", plugin=[path])
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("hook", "given"),
    [
        ("needs_sgd", {"optimizer": "adam"}),
        ("needs_mean", {"merge": "median"}),
        ("unprotected", {"privacy": {"noise": 1.0, "clip": 1.0}, "sample": 0.5}),
    ],
)
@pytest.mark.parametrize(
    ("hooked", "words"),
    [
        (classmethod(lambda cls: None), "TypeError: .* 2 were given"),
        (classmethod(lambda cls, options: True), "gave True, expected the reason in words, or None"),
    ],
)
def test_what_a_hook_of_the_class_does_wrong_is_a_sentence(
    hook: str, given: dict[str, Any], hooked: Any, words: str
) -> None:
    mine = type("Mine", (FedAvg,), {"name": "mine", hook: hooked})
    with pytest.raises(MethodError, match=f"method mine, hook `{hook}`: {words}"):
        Experiment(method=mine, **given)


def test_helpers_of_ones_own_are_fine() -> None:
    made = type("Mine", (FedAvg,), {"name": "mine", "_los": lambda self: 0, "temperature": 3})
    assert issubclass(made, Method) and made.options_type is Options


def test_an_edited_plugin_does_not_continue_a_run_and_may_be_mended_before_it_trained(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    good = "from fedproc.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n"
    path.write_text(good + "    def correct(self, gradient, local):\n        return gradient[..., :2]\n")
    words = ["run", "--plugin", path, "--method", "mine", *SMALL, "--out", tmp_path / "run"]
    failed = fedproc(*words)
    assert failed.returncode == 1 and "hook `correct`" in failed.stderr
    path.write_text(good)
    mended = fedproc(*words)
    assert mended.returncode == 0, mended.stderr
    path.write_text(good + "# another\n")
    refused = fedproc(*words)
    assert refused.returncode == 2 and "--plugin: the file has changed" in refused.stderr
