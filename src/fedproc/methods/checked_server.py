"""The server's half of a method as the round loop calls it: every answer is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedproc.errors import InputError, MethodError
from fedproc.methods.checked import RESERVED, Checked, alike, kind, same_weights, shown
from fedproc.methods.method import ClientProblem, Indices, Method, Options, ServerProblem, TensorInfo
from fedproc.protocol.payload import Tensors
from fedproc.protocol.server_half import Answer, Pass
from fedproc.protocol.task import MeansMode, Phase, Trains
from fedproc.protocol.weights import Weights
from fedproc.whereabouts import in_words


class CheckedServer(Checked):
    """The server's half."""

    @property
    def rounds(self) -> int:
        found = self._call("rounds")
        fine = isinstance(found, int) and not isinstance(found, bool) and found >= 1
        self.expect(fine, "rounds", found, "a whole number of at least 1")
        return found  # type: ignore[no-any-return]

    @property
    def own_rounds(self) -> int:
        found = self._call("own_rounds")
        fine = isinstance(found, int) and not isinstance(found, bool) and found >= 0
        self.expect(fine, "own_rounds", found, "a whole number of at least 0")
        return found  # type: ignore[no-any-return]

    @property
    def aligns(self) -> bool:
        return type(self.method).align is not Method.align

    @property
    def has_own(self) -> bool:
        return type(self.method).own_model is not Method.own_model

    @property
    def name(self) -> str:
        return self.method.name

    @property
    def federated(self) -> bool:
        return bool(self.method.federated)

    @property
    def classes(self) -> int:
        return self.method.client.classes

    @property
    def features(self) -> int:
        return self.method.client.features

    @property
    def momentum(self) -> float:
        return self.method.client.momentum

    def personal(self, tensor: TensorInfo) -> bool:
        found = self._call("personal", tensor)
        self.expect(isinstance(found, bool), "personal", found, "True or False")
        return found  # type: ignore[no-any-return]

    def knowing(self, client_sizes: Sequence[int]) -> CheckedServer:
        with self._naming("knowing"):
            return CheckedServer(self.method.knowing(client_sizes))

    def depends_on_rounds(self) -> str | None:
        found = self._call("depends_on_rounds")
        self.expect(found is None or isinstance(found, str), "depends_on_rounds", found, "words, or None")
        return found  # type: ignore[no-any-return]

    def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]:
        given = self._call("participants", t, sampled)
        self.expect(isinstance(given, (Sequence, range)), "participants", given, "a list of clients' numbers")
        found, everyone = list(given), range(len(self.method.server.client_sizes))
        fine = len(set(found)) == len(found) and all(isinstance(c, int) and c in everyone for c in found)
        self.expect(fine, "participants", found, f"numbers of clients, each once, below {len(everyone)}")
        return sorted(found)

    def opening(self) -> Sequence[Pass]:
        return self._passes("opening")

    def passes(self, t: int) -> Sequence[Pass]:
        return self._passes("passes", t)

    def closing(self) -> Sequence[Pass]:
        return self._passes("closing")

    def _passes(self, hook: str, *given: Any) -> Sequence[Pass]:
        found = self._call(hook, *given)
        fine = isinstance(found, (tuple, list)) and all(isinstance(each, Pass) for each in found)
        self.expect(fine, hook, found, "passes")
        for each in found:
            fine = each.of in ("participants", "everyone") and each.mode in get_args(MeansMode)
            self.expect(fine, hook, each, "a pass of participants or everyone, clean or training")
        return tuple(found)

    def phases(self, t: int) -> tuple[Phase, ...]:
        found = self._call("phases", t)
        fine = isinstance(found, tuple) and bool(found) and all(isinstance(phase, Phase) for phase in found)
        self.expect(fine, "phases", found, "a tuple of phases")
        for phase in found:
            whole = isinstance(phase.epochs, int) and not isinstance(phase.epochs, bool) and phase.epochs >= 0
            fine = whole and phase.trains in get_args(Trains) and isinstance(phase.name, str)
            self.expect(fine, "phases", phase, f"whole epochs, trains one of {', '.join(get_args(Trains))}")
        for phase in found:
            fine = isinstance(phase.frozen, int) and phase.frozen >= 0
            self.expect(fine, "phases", phase, "a number of frozen parameters of at least 0")
            fine = not (phase.second or phase.trains == "nothing") or not phase.returns
            self.expect(fine, "phases", phase, "that a second model, or one that is not trained, is not returned")
        some = any(phase.returns and phase.epochs for phase in found) or all(phase.second for phase in found)
        self.expect(some, "phases", found, "one phase at least that trains and returns weights, or second models alone")
        names = [phase.name for phase in found]
        self.expect(len(set(names)) == len(names), "phases", names, "phases with names of their own")
        return found  # type: ignore[no-any-return]

    def class_means(self, t: int) -> MeansMode | None:
        found = self._call("class_means", t)
        self.expect(found is None or found in get_args(MeansMode), "class_means", found, "clean, training or None")
        return found  # type: ignore[no-any-return]

    def first_state(self, params: int) -> Tensors:
        return self._finite("first_state", self._tensors("first_state", params), ())

    def settings(self, t: int) -> Mapping[str, float]:
        found = self._call("settings", t)
        self.expect(isinstance(found, Mapping), "settings", found, "numbers by name")
        for name, value in found.items():
            fine = isinstance(value, (int, float)) and math.isfinite(value) and isinstance(name, str) and name != "lr"
            self.expect(fine, "settings", f"{name} = {shown(value)}", "finite numbers by name, besides lr")
        return {name: float(value) for name, value in found.items()}

    def send(self, state: Tensors) -> Tensors:
        found = self._finite("send", self._tensors("send", state, held=[state]), [state])
        taken = sorted(RESERVED & set(found))
        self.expect(not taken, "send", taken, "names of its own")
        return found

    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        found = self._call("shares", samples)
        fine = isinstance(found, (list, tuple)) and len(found) == len(samples)
        fine = fine and all(isinstance(share, (int, float)) and share >= 0 for share in found)
        fine = fine and abs(sum(found) - 1) < 1e-6
        self.expect(fine, "shares", found, f"{len(samples)} shares of at least 0 that sum to 1")
        return [float(share) for share in found]

    def step_numbers(self) -> Mapping[str, float]:
        found = self._call("step_numbers")
        fine = isinstance(found, Mapping) and {"beta", "lr"} <= set(found)
        fine = fine and all(isinstance(value, (int, float)) and math.isfinite(value) for value in found.values())
        self.expect(fine, "step_numbers", found, "finite numbers by name, beta and lr among them")
        return found  # type: ignore[no-any-return]

    def align(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        found = self._call("align", answers, held=[answers])
        fine = isinstance(found, (list, tuple)) and all(isinstance(each, Answer) for each in found)
        fine = fine and [each.client for each in found] == [each.client for each in answers]
        self.expect(fine, "align", found, "an answer for each that was given, in their order")
        for after, before in zip(found, answers, strict=True):
            same = set(after.tensors) == set(before.tensors)
            same = same and all(alike(after.tensors[name], tensor) for name, tensor in before.tensors.items())
            self.expect(same, "align", sorted(after.tensors), "tensors named and shaped like those that were given")
            self._finite("align", after.tensors, [before])
        return found  # type: ignore[no-any-return]

    def averages(self) -> Sequence[str]:
        found = self._call("averages")
        fine = isinstance(found, (tuple, list)) and all(isinstance(name, str) for name in found)
        self.expect(fine, "averages", found, "names of what `returns` has")
        return tuple(found)

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        return self._tensors("collect", state, sums, answer, held=[state, answer])

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        return self._like("receive", state, self._tensors("receive", state, sums, held=[state]), sums)

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors:
        return self._tensors("collect_pass", state, which, sums, answer, held=[state, answer])

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors:
        found = self._tensors("receive_pass", state, which, sums, held=[state])
        return self._like("receive_pass", state, found, sums)

    def _like(self, hook: str, before: Tensors, after: Tensors, sums: Tensors) -> Tensors:
        """What the server keeps may grow, but nothing of it is lost or changes its kind."""
        lost = sorted(set(before) - set(after))
        self.expect(not lost, hook, f"a state without {', '.join(lost)}", "all of it back: {**state, ...}")
        for name, tensor in before.items():
            same = tensor.shape == after[name].shape and tensor.dtype == after[name].dtype
            self.expect(same, hook, f"{name} {kind(after[name])}", f"{kind(tensor)} as before")
        return self._finite(hook, after, [before, sums])

    def finish(self, params: Tensor, state: Tensors) -> Tensor:
        found = self._call("finish", params, state, held=[params, state])
        self.expect(alike(found, params), "finish", found, f"parameters {kind(params)}")
        return self._finite("finish", {"parameters": found}, [params, state])["parameters"]

    def prototypes(self, state: Tensors) -> tuple[Tensor, Tensor] | None:
        found = self._call("prototypes", state, held=[state])
        if found is not None:
            shape, dtype = (self.classes, self.features), self.method.client.dtype
            fine = isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, Tensor) for each in found)
            fine = fine and tuple(found[0].shape) == shape and found[0].dtype == dtype
            fine = fine and tuple(found[1].shape) == shape[:1] and found[1].dtype == torch.bool
            expected = f"prototypes {shape} of {dtype} and which are known {shape[:1]} of {torch.bool}"
            self.expect(fine, "prototypes", found, expected)
            self._finite("prototypes", {"prototypes": found[0]}, [state])
        return found  # type: ignore[no-any-return]

    def final_models(self, weights: Weights, state: Tensors) -> Mapping[str, Weights]:
        found = self._call("final_models", weights, state, held=[weights, state])
        self.expect(isinstance(found, Mapping), "final_models", found, "models by name")
        for name, model in found.items():
            fine = isinstance(name, str) and bool(name) and name != "averaged" and same_weights(model, weights)
            self.expect(fine, "final_models", f"{name}", "models like the one given, by names other than averaged")
        return found  # type: ignore[no-any-return]


def holdings(method: type[Method], shares: Sequence[Indices], samples: int) -> list[Indices]:
    """Which samples each client trains on, by the method's class."""
    try:
        found = method.holdings(shares)
    except Exception as error:
        raise MethodError(method.name, "holdings", in_words(error)) from error
    fine = isinstance(found, list) and bool(found) and all(isinstance(each, np.ndarray) for each in found)
    fine = fine and all(len(each) and each.dtype == np.int64 for each in found)
    fine = fine and all(0 <= each.min() <= each.max() < samples for each in found)
    if not fine:
        expected = f"a list of arrays of int64 below {samples}, none of them empty"
        raise MethodError(method.name, "holdings", f"gave {shown(found)}, expected {expected}")
    return found


def reason_of(method: type[Method], hook: str, options: Options) -> str | None:
    """The reason that a hook of the class gives against something, with these options: `needs_sgd`, `needs_mean` or
    `unprotected`.
    """
    try:
        found = getattr(method, hook)(options)
    except Exception as error:
        raise MethodError(method.name, hook, f"{type(error).__name__}: {error}") from error
    if not (found is None or isinstance(found, str)):
        raise MethodError(method.name, hook, f"gave {shown(found)}, expected the reason in words, or None")
    return found


def made_method(method: type[Method], options: Options, client: ClientProblem, server: ServerProblem) -> Method:
    """The method as an object."""
    try:
        return method(options, client, server)
    except (InputError, MethodError):  # a method may refuse the network
        raise
    except Exception as error:
        raise MethodError(method.name, "__init__", in_words(error)) from error
