"""Plugins that would train wrongly without a word, or take other runs along: each is named with its hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ToyLibrary, Train, fedproc, toy_experiment, toy_images, work

from fedproc import Experiment, InputError, run
from fedproc.lanes import choose
from fedproc.simulation.drive import drive, run_all
from fedproc.simulation.session import Session

HEAD = """
import numpy as np
import torch
from dataclasses import replace
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedproc import FedProc
from fedproc.methods.method import Pass, Phase, Term, Weights
from fedproc.methods.moon import Moon
from fedproc.methods.scaffold import Scaffold


class Mine(FedAvg):
    name = "mine"
"""


def plugin(folder: Path, body: str) -> Path:
    path = folder / "mine.py"
    path.write_text(HEAD + "".join(f"    {line}\n" for line in body.strip().splitlines()))
    return path


def hook(name: str, given: str, result: str, before: str = "") -> str:
    lines = [f"def {name}({given}):", *(f"    {line}" for line in before.splitlines()), f"    return {result}"]
    return "\n".join(lines)


LOSS = "self, batch, local"
CE = 'torch.nn.functional.cross_entropy(batch.logits.flatten(0, -2), batch.labels.flatten(), reduction="none")'
STATE = hook("first_client_state", "self, client, sent, fresh", '{"a": torch.zeros(2)}') + "\n"
WRONG: list[tuple[str, str, str, str]] = [
    # what mixes clients that train side by side, or counts padding
    (
        "mean-of-padded",
        hook("loss", LOSS, f'{{"cross_entropy": {CE}.view(batch.labels.shape).mean(dim=-1)}}'),
        "loss",
        "padded",
    ),
    (
        "counts-max",
        hook("correct", "self, gradient, local", "gradient * local.class_counts.max()"),
        "correct",
        "side by side",
    ),
    (
        "steps-mean",
        hook("correct", "self, gradient, local", "gradient / local.steps.double().mean().to(gradient.dtype)"),
        "correct",
        "side by side",
    ),
    (
        "weights-mean",
        hook("correct", "self, gradient, local", "gradient + local.weights.params.mean()"),
        "correct",
        "side by side",
    ),
    (
        "clips-in-place",
        hook("correct", "self, gradient, local", "gradient.div_(gradient.norm())"),
        "correct",
        "side by side",
    ),
    (
        "asks-anybody",
        STATE + hook("correct", "self, gradient, local", "gradient * 2 if local.state['a'].sum() > 0 else gradient"),
        "correct",
        "side by side",
    ),
    (
        "later-setting",
        hook("settings", "self, t", '{"on": float(t > 0)}')
        + "\n"
        + hook(
            "correct",
            "self, gradient, local",
            "gradient + 1e-9",
            "if (local.settings['on'] > 0).any():\n    return gradient + local.weights.params.mean()",
        ),
        "correct",
        "side by side",
    ),
    # gradients that do not come out
    (
        "prox-in-loss",
        hook("term_names", "self", '("cross_entropy", "prox")')
        + "\n"
        + hook(
            "loss",
            LOSS,
            '{**super().loss(batch, local), "prox": (local.weights.params - local.start.params).square().sum(-1)}',
        ),
        "loss",
        "local.weights",
    ),
    (
        "no-gradient",
        hook("loss", LOSS, '{"cross_entropy": torch.zeros(batch.labels.shape)}'),
        "loss",
        "nothing to train by",
    ),
    # changes in place
    (
        "start-in-place",
        hook("start", "self, sent, state, phase", "sent", "sent.params.mul_(0.99)"),
        "start",
        "in place",
    ),
    (
        "state-in-place",
        STATE + hook("start_optimizer", "self, state, phase", "None", "state['a'].add_(1)"),
        "start_optimizer",
        "in place",
    ),
    (
        "server-in-place",
        hook("first_state", "self, params", '{"n": torch.zeros(1)}')
        + "\n"
        + hook("receive", "self, state, sums", "state", "state['n'].add_(1)"),
        "receive",
        "in place",
    ),
    (
        "z-in-place",
        hook("loss", LOSS, "super().loss(batch, local)", "with torch.no_grad():\n    batch.z.mul_(0.5)"),
        "loss",
        "in place",
    ),
    (
        "logits-in-place-later",
        hook(
            "loss",
            LOSS,
            '{"cross_entropy": Term(late)}',
            f"def late():\n    batch.logits.detach().mul_(0.5)\n    return {CE}.view(batch.labels.shape)",
        ),
        "loss",
        "in place",
    ),
    # gradients that some executors would not give
    (
        "hook-on-z",
        hook("loss", LOSS, "super().loss(batch, local)", "batch.z.register_hook(lambda g: 0.5 * g)"),
        "loss",
        "hook on batch.z",
    ),
    # states that differ by client, or by the call
    (
        "state-of-some",
        hook("first_client_state", "self, client, sent, fresh", '{"a": torch.zeros(1 + client % 2)}'),
        "first_client_state",
        "for every client",
    ),
    (
        "random-state",
        hook("first_client_state", "self, client, sent, fresh", '{"a": torch.rand(2)}'),
        "first_client_state",
        "asked again",
    ),
    (
        "random-start",
        hook(
            "start",
            "self, sent, state, phase",
            "replace(sent, params=sent.params + torch.rand(1).to(sent.params.dtype))",
        ),
        "start",
        "asked again",
    ),
    # values that mean something else
    ("shares-counts", hook("shares", "self, samples", "list(samples)"), "shares", "sum to 1"),
    ("shares-none", hook("shares", "self, samples", "None"), "shares", "sum to 1"),
    ("trains-head", hook("phases", "self, t", '(Phase(1, trains="head"),)'), "phases", "trains one of"),
    ("half-epoch", hook("phases", "self, t", "(Phase(1.5),)"), "phases", "whole epochs"),
    ("no-epoch", hook("phases", "self, t", "(Phase(0),)"), "phases", "that trains"),
    ("misspelt-pass", hook("passes", "self, t", '(Pass("a", "evryone"),)'), "passes", "everyone"),
    ("term-loss", hook("term_names", "self", '("loss",)'), "term_names", "none of them loss"),
    (
        "final-averaged",
        hook("final_models", "self, weights, state", '{"averaged": weights}'),
        "final_models",
        "other than averaged",
    ),
    # what is not finite
    ("nan-gradient", hook("correct", "self, gradient, local", "gradient * float('nan')"), "correct", "not finite"),
    ("nan-sent", hook("send", "self, state", '{"a": torch.tensor(float("nan"))}'), "send", "not finite"),
    ("nan-finish", hook("finish", "self, params, state", "params / 0"), "finish", "not finite"),
    ("nan-setting", hook("settings", "self, t", '{"a": float("inf")}'), "settings", "finite numbers"),
    ("nan-step", hook("step_numbers", "self", '{"beta": float("nan"), "lr": 1.0}'), "step_numbers", "finite numbers"),
    # what is no answer to the question
    ("participants-none", hook("participants", "self, t, sampled", "None"), "participants", "a list"),
    ("participants-far", hook("participants", "self, t, sampled", "[99]"), "participants", "below 5"),
    ("send-reserved", hook("send", "self, state", '{"params": torch.zeros(1)}'), "send", "names of its own"),
    ("returns-number", hook("returns", "self, params, dtype", '{"a": (3, dtype)}'), "returns", "(shape, dtype)"),
    (
        "weight-word",
        hook("loss", LOSS, '{k: replace(v, weight="a") for k, v in super().loss(batch, local).items()}'),
        "loss",
        "a weight",
    ),
    (
        "counted-far",
        hook("loss", LOSS, "{k: replace(v, counted=torch.ones(7)) for k, v in super().loss(batch, local).items()}"),
        "loss",
        "counted",
    ),
    (
        "prototypes-float",
        hook("prototypes", "self, state", "(torch.zeros(4, 256), torch.ones(4))"),
        "prototypes",
        "which are known",
    ),
    (
        "start-short",
        hook("start", "self, sent, state, phase", "replace(sent, buffers=torch.zeros(3))"),
        "start",
        "like those sent",
    ),
    ("finals-list", hook("final_models", "self, weights, state", "[weights]"), "final_models", "models by name"),
    ("exits", hook("receive", "self, state, sums", "state", "raise SystemExit(3)"), "receive", "SystemExit"),
    # before anything is trained
    ("rounds-zero", "rounds = 0", "rounds", "at least 1"),
    ("personal-word", hook("personal", "self, tensor", '"no"'), "personal", "True or False"),
    ("holdings-none", "@classmethod\n" + hook("holdings", "cls, shares", "None"), "holdings", "a list of arrays"),
    ("first-state-raises", hook("first_state", "self, params", "1 / 0"), "first_state", "ZeroDivisionError"),
    (
        "init-raises",
        hook("__init__", "self, options, client, server=None", "None", "raise ValueError('no')"),
        "__init__",
        "ValueError: no",
    ),
]


@pytest.mark.parametrize(("name", "body", "where", "words"), WRONG, ids=[case[0] for case in WRONG])
def test_it_is_named_and_the_other_run_goes_on(name: str, body: str, where: str, words: str, tmp_path: Path) -> None:
    path = plugin(tmp_path, body)
    given: dict[str, Any] = {"rounds": 2, "dtype": "float64", "data": "fashion-mini", "epochs": 1, "batch_size": 512}
    given |= {"network": "toy_networks:TinyNet", "clients": 5, "device": "cpu"}
    asked = {
        "mine": (Experiment(method="mine", plugin=[path], **given), tmp_path / "mine"),
        "fedavg": (Experiment(method="fedavg", **given), tmp_path / "fedavg"),
    }
    mine, other = run_all(asked)  # type: ignore[arg-type]
    assert mine.result["status"] == "failed" and other.result["status"] == "finished", mine.result
    assert f"method mine, hook `{where}`" in mine.result["reason"], mine.result["reason"]
    assert words in mine.result["reason"]


@pytest.mark.parametrize(("executor", "lanes"), [("serial", 1), ("stacked", 10), ("streamed", 2)])
def test_an_error_with_another_methods_name_ends_this_one(executor: str, lanes: int, tmp_path: Path) -> None:
    """Its places among the lanes were once looked up by that name, and the work begun again for ever."""
    inner = "FedProc(FedProc.options_type(), self.client).server"
    path = plugin(tmp_path, hook("reply", "self, local", "{}", f"if local.velocity.abs().max() > 0.015:\n    {inner}"))
    library = ToyLibrary(toy_images())
    sessions = [Session(toy_experiment(method=m, plugin=[path]), library, m) for m in ("mine", "fedproc")]
    made = choose(executor, lanes, 1, [session.setting for session in sessions], 10)
    drive(sessions, made)
    made.close()
    assert [session.result["status"] for session in sessions if session.result] == ["failed", "finished"]
    assert sessions[0].result is not None and "method mine, hook `reply`" in sessions[0].result["reason"]


@pytest.mark.parametrize(("executor", "lanes"), [("serial", 1), ("stacked", 15), ("streamed", 2)])
def test_of_two_variants_of_a_method_the_bad_one_fails(executor: str, lanes: int, tmp_path: Path) -> None:
    body = hook("reply", "self, local", "{}", "if self.options.bad and local.velocity.abs().max() > 0.015:\n    1 / 0")
    path = plugin(tmp_path, "options_type = BadOptions\n" + body)
    source = path.read_text()
    options = "from fedproc.methods.method import Options\n\n\nclass BadOptions(Options):\n    bad: bool = False\n\n\n"
    path.write_text(source.replace("class Mine", options + "class Mine"))
    library = ToyLibrary(toy_images())
    given = {"method": "mine", "plugin": [path]}
    sessions = [Session(toy_experiment(**given, mine={"bad": bad}), library, str(bad)) for bad in (False, True)]
    made = choose(executor, lanes, 1, [session.setting for session in sessions], 10)
    drive(sessions, made)
    made.close()
    assert [session.result["status"] for session in sessions if session.result] == ["finished", "failed"]


def test_an_empty_first_round_is_legal_on_the_command_line(tmp_path: Path) -> None:
    path = plugin(tmp_path, hook("participants", "self, t, sampled", "sampled if t else []"))
    words = ["--clients", "3", "--rounds", "2", "--epochs", "1", "--batch-size", "512", "--out", tmp_path / "run"]
    done = fedproc("run", "--plugin", path, "--method", "mine", *words)
    assert done.returncode == 0, done.stderr


def test_nothing_shared_and_nobody_asked_in_the_last_round(train: Train, tmp_path: Path) -> None:
    body = (
        hook("personal", "self, tensor", "True")
        + "\n"
        + hook("participants", "self, t, sampled", "[] if t else sampled")
    )
    session = train(method="mine", plugin=[plugin(tmp_path, body)], rounds=2)
    assert session.result is not None and session.result["status"] == "finished"
    assert "test_accuracy" in session.records[-1]


def control_error(session: Session) -> float:
    """How far the server's control variate is from the mean of the clients', by samples."""
    sizes = torch.tensor(session.client_sizes, dtype=torch.float64)
    own = torch.stack([(session.states.get(client) or {})["control"] for client in range(len(sizes))])
    mean = (sizes / sizes.sum()) @ own
    return float((session.state.method["control"] - mean).norm() / mean.norm())


SECOND = """
class Two(SecondModel, {base}):
    name = "two"
"""


def combined(folder: Path, base: str, more: str = "") -> Path:
    """The toy that trains a second model, with another method."""
    toys = (Path(__file__).resolve().parent.parent / "toy_methods.py").read_text()
    path = folder / "two.py"
    path.write_text(toys + "from fedproc.methods.scaffold import Scaffold\n" + SECOND.format(base=base) + more)
    return path


def test_a_phase_that_returns_nothing_leaves_control_variates_alone(train: Train, tmp_path: Path) -> None:
    given = {"plugin": [combined(tmp_path, "Scaffold")], "dtype": "float64", "rounds": 3}
    assert control_error(train(method="two", **given)) < 1e-12


def test_a_second_model_does_not_overwrite_a_personal_one(train: Train, tmp_path: Path) -> None:
    refused = {"plugin": [combined(tmp_path, "OwnClassifier")], "dtype": "float64", "rounds": 2}
    with pytest.raises(InputError, match="clients have own parts of the global model, or own models beside it"):
        train(method="two", **refused)  # which of the two would be the client's is not said
    unseen = "    own_model = FedAvg.own_model\n"  # trained, and evaluated nowhere
    given = {"plugin": [combined(tmp_path, "OwnClassifier", unseen)], "dtype": "float64", "rounds": 2}
    two, alone = train(method="two", **given), train(method="own-classifier", **given)
    for client in range(5):
        one, other = two.states.get(client), alone.states.get(client)
        assert one is not None and other is not None and torch.equal(one["params"], other["params"])


def test_weights_of_terms_multiply_in_any_order(train: Train, tmp_path: Path) -> None:
    path = plugin(tmp_path, "pass")
    half = "def loss(self, batch, local):\n        terms = dict(super().loss(batch, local))\n"
    half += (
        "        whole = terms['cross_entropy']\n        weight = 0.5 if whole.weight is None else 0.5 * whole.weight\n"
    )
    half += "        return {**terms, 'cross_entropy': replace(whole, weight=weight)}\n"
    text = path.read_text() + f"\n\nclass Half(FedAvg):\n    name = 'half'\n    {half}\n"
    text += "\nclass A(Half, FedProc):\n    name = 'a'\n\n\nclass B(FedProc, Half):\n    name = 'b'\n"
    path.write_text(text)
    given = {"plugin": [path], "dtype": "float64", "rounds": 3}
    a, b, proc = (train(method=m, **given).state.weights.params for m in ("a", "b", "fedproc"))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(a, proc)


def test_fedproc_takes_its_own_passes_alone(train: Train, tmp_path: Path) -> None:
    path = plugin(tmp_path, "pass")
    body = "\n\nclass More(FedProc):\n    name = 'more'\n\n    def passes(self, t):\n"
    body += "        return (*super().passes(t), Pass('other', 'everyone', 'training'))\n"
    path.write_text(path.read_text() + body)
    given = {"plugin": [path], "dtype": "float64", "rounds": 3}
    assert torch.equal(
        train(method="more", **given).state.weights.params, train(method="fedproc", **given).state.weights.params
    )


def test_frozen_features_stay_with_personal_parts_and_server_momentum(train: Train, tmp_path: Path) -> None:
    path = plugin(tmp_path, hook("personal", "self, tensor", "tensor.name == 'classifier.bias'"))
    text = path.read_text() + "\n\nfrom fedproc.methods.two_stage import TwoStage\n\n\n"
    path.write_text(text + "class Both(Mine, TwoStage):\n    name = 'two'\n")
    given = {"method": "two", "plugin": [path], "server_step": "momentum"}
    first, whole = train(**given, rounds=2, two={"split": 1.0}), train(**given, rounds=4)
    span = whole.setting.layout.span("classifier.")
    assert torch.equal(first.state.weights.params[: span.start], whole.state.weights.params[: span.start])


def test_class_means_of_a_method_without_prototypes_are_the_diagnostics(train: Train, tmp_path: Path) -> None:
    path = plugin(tmp_path, hook("class_means", "self, t", "'clean'"))
    mine, plain = train(method="mine", plugin=[path], rounds=2), train(method="fedavg", rounds=2)
    assert mine.records[-1]["prototype_accuracy"] == plain.records[-1]["prototype_accuracy"]


def test_clients_without_prototypes_are_no_part_of_their_mean(train: Train, tmp_path: Path) -> None:
    path = plugin(tmp_path, hook("personal", "self, tensor", "tensor.name.startswith('classifier')"))
    record = train(method="mine", plugin=[path], rounds=2, sample=0.4).records[-1]
    assert record["prototype_accuracy"] > 0.3  # 0.15 to 0.29 with zeros of those that were not asked


def test_states_of_other_dtypes_go_through_a_checkpoint(tmp_path: Path) -> None:
    body = hook("first_state", "self, params", '{"n": torch.zeros(2, dtype=torch.int32)}') + "\n"
    body += hook("receive", "self, state, sums", '{"n": state["n"] + 1}') + "\n"
    body += hook("first_client_state", "self, client, sent, fresh", '{"h": torch.zeros(2, dtype=torch.float16)}')
    given = {"method": "mine", "plugin": [plugin(tmp_path, body)]}
    work(tmp_path / "run", rounds=2, **given)
    continued = work(tmp_path / "run", rounds=3, **given)
    assert continued.state.method["n"].tolist() == [3, 3] and continued.state.method["n"].dtype == torch.int32


def test_more_rounds_after_a_closing_pass_are_those_of_one_run(tmp_path: Path) -> None:
    from conftest import contents

    toys = Path(__file__).resolve().parent.parent / "toy_methods.py"
    for every in (1, 3):
        given = {"method": "closing", "plugin": [toys], "eval_every": every}
        work(tmp_path / f"run-{every}", rounds=4, **given)
        work(tmp_path / f"run-{every}", rounds=6, **given)
        work(tmp_path / f"whole-{every}", rounds=6, **given)
        assert contents(tmp_path / f"run-{every}") == contents(tmp_path / f"whole-{every}")


@pytest.mark.parametrize("name", ["seed", "a/b", "", "Sample"])
def test_names_that_are_taken_or_none_are_refused(name: str, tmp_path: Path) -> None:
    path = plugin(tmp_path, "pass")
    path.write_text(path.read_text().replace('"mine"', repr(name)))
    with pytest.raises(InputError, match=r"plugin.*its method"):
        toy_experiment(method=name, plugin=[path])


def test_an_edited_result_or_partition_is_named(tmp_path: Path) -> None:
    given = {"clients": 2, "rounds": 1, "epochs": 1, "batch_size": 512, "device": "cpu", "method": "fedavg"}
    run(Experiment(**given), tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    whole = path.read_text()
    path.write_text(json.dumps({**json.loads(whole), "best_accuracy": 1.5}))
    with pytest.raises(InputError, match=r"result\.json: its checksum is wrong"):
        run(Experiment(**given), tmp_path / "run")
    path.write_text(whole)
    other = tmp_path / "run" / "partition.json"
    other.write_text(other.read_text().replace("1", "2", 1))
    with pytest.raises(InputError, match=r"partition\.json: not who holds what in this run"):
        run(Experiment(**given), tmp_path / "run")
    other.write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"partition\.json: cannot be read"):
        run(Experiment(**given), tmp_path / "run")
