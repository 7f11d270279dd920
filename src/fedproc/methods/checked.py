"""Everything that a person's own code returns, checked where it is called: a method that breaks its contract is named
with its hook, whatever executor runs it, instead of training wrongly.

`CheckedServer` stands for a method in the round loop, `CheckedClient` in the lanes; `rehearsal.py` tries out the
client's hooks before they train.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedproc.errors import MethodError
from fedproc.kernels.forks import at_once
from fedproc.methods.method import (
    Batch,
    ClientProblem,
    Indices,
    Local,
    Method,
    Options,
    ServerProblem,
    TensorInfo,
    Term,
)
from fedproc.protocol.guard import Shapes
from fedproc.protocol.payload import Tensors
from fedproc.protocol.server_half import Answer, Pass
from fedproc.protocol.task import MeansMode, Phase, Trains
from fedproc.protocol.weights import NAMES, Shared, Weights

RESERVED = frozenset({*NAMES, "losses", "class_means", "class_counts", "class_covariances"})
FAR = 1e15  # values up to which a result that is not finite is the method's doing, and no divergence
Loss = tuple[Tensor, list[Tensor]]


class _Checked:
    """Calls hooks, naming method and hook in whatever goes wrong."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def _call(self, hook: str, *given: Any, held: Sequence[object] = ()) -> Any:
        """What the hook gives; tensors in `held` must be as they were."""
        before = [(tensor, tensor._version) for tensor in _tensors_in(held)]
        with self._naming(hook):
            found = getattr(self.method, hook)
            found = found(*given) if callable(found) else found
        if any(tensor._version != version for tensor, version in before):
            self._fail(hook, "changes a tensor that it was given in place; return a new one")
        return found

    def _naming(self, hook: str) -> _Naming:
        return _Naming(self, hook)

    def _fail(self, hook: str, reason: str) -> None:
        raise MethodError(self.method.name, hook, reason, self)

    def expect(self, fine: bool, hook: str, got: object, expected: str) -> None:
        if not fine:
            self._fail(hook, f"gave {got if isinstance(got, str) else _shown(got)}, expected {expected}")

    def _tensors(self, hook: str, *given: Any, held: Sequence[object] = ()) -> Tensors:
        found = self._call(hook, *given, held=held)
        self.expect(isinstance(found, Mapping), hook, found, "tensors by name")
        for name, tensor in found.items():
            self.expect(isinstance(name, str), hook, name, "names that are words")
            self.expect(isinstance(tensor, Tensor), hook, f"{name} = {_shown(tensor)}", "a tensor")
        return dict(found)

    def _finite(self, hook: str, found: Tensors, given: Sequence[object]) -> Tensors:
        """A result that is not finite, of numbers that are and are not large, is the method's doing."""
        for name, tensor in found.items():
            if not _is_finite(tensor) and all(_is_moderate(each) for each in _tensors_in(given)):
                self._fail(hook, f"gave {name} that is not finite, of finite numbers")
        return found

    def term_names(self) -> tuple[str, ...]:
        found = self._call("term_names")
        fine = isinstance(found, tuple) and bool(found) and all(isinstance(name, str) for name in found)
        fine = fine and len(set(found)) == len(found) and "loss" not in found
        self.expect(fine, "term_names", found, "a tuple of names, each once, none of them loss")
        return found  # type: ignore[no-any-return]

    def returns(self, params: int, dtype: torch.dtype) -> Shapes:
        found = self._call("returns", params, dtype)
        self.expect(isinstance(found, Mapping), "returns", found, "shapes and dtypes by name")
        taken = sorted(RESERVED & set(found))
        self.expect(not taken, "returns", taken, "names of its own")
        for name, entry in found.items():
            fine = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], torch.dtype)
            fine = fine and isinstance(entry[0], (tuple, list)) and all(isinstance(n, int) for n in entry[0])
            self.expect(fine, "returns", f"{name}: {_shown(entry)}", "(shape, dtype)")
        return {name: (tuple(shape), kind) for name, (shape, kind) in found.items()}


class _Naming:
    """Names method and hook in whatever a person's own code raises."""

    def __init__(self, checked: _Checked, hook: str) -> None:
        self._checked, self._hook = checked, hook

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, (torch.OutOfMemoryError, KeyboardInterrupt, GeneratorExit)):
            return
        if isinstance(error, MethodError) and error.source is self._checked:
            return
        reason = error.reason if isinstance(error, MethodError) else f"{type(error).__name__}: {error}"
        raise MethodError(self._checked.method.name, self._hook, reason, self._checked) from error


class CheckedServer(_Checked):
    """The server's half."""

    @property
    def rounds(self) -> int:
        found = self._call("rounds")
        fine = isinstance(found, int) and not isinstance(found, bool) and found >= 1
        self.expect(fine, "rounds", found, "a whole number of at least 1")
        return found  # type: ignore[no-any-return]

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
        some = any(phase.returns and phase.epochs for phase in found)
        self.expect(some, "phases", found, "one phase at least that trains and returns weights")
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
            self.expect(fine, "settings", f"{name} = {_shown(value)}", "finite numbers by name, besides lr")
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
            self.expect(same, hook, f"{name} {_kind(after[name])}", f"{_kind(tensor)} as before")
        return self._finite(hook, after, [before, sums])

    def finish(self, params: Tensor, state: Tensors) -> Tensor:
        found = self._call("finish", params, state, held=[params, state])
        self.expect(_alike(found, params), "finish", found, f"parameters {_kind(params)}")
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
            fine = isinstance(name, str) and bool(name) and name != "averaged" and _same_weights(model, weights)
            self.expect(fine, "final_models", f"{name}", "models like the one given, by names other than averaged")
        return found  # type: ignore[no-any-return]


class CheckedClient(_Checked):
    """The client's half. `shared` is what clients share of a model, None where that is all of it."""

    def __init__(self, method: Method, shared: Shared | None = None) -> None:
        super().__init__(method)
        self.shared = shared
        self.moves = type(method).displace is not Method.displace  # whether a second gradient is taken
        self._kinds: dict[str, str] | None = None  # of a client's state, the same for all

    def first_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        """A client's state before its first round."""
        whole = {} if self.shared is None else sent.tensors()
        found = {**whole, **self._tensors("first_client_state", client, sent, fresh, held=[sent])}
        kinds = {name: _kind(tensor) for name, tensor in sorted(found.items())}
        if self._kinds is None:
            self._kinds = kinds
        expected = f"the same names, shapes and dtypes for every client: {self._kinds}"
        self.expect(kinds == self._kinds, "first_client_state", kinds, expected)
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def start(self, sent: Weights, state: Tensors, phase: str) -> Weights:
        """What a phase starts from: what was sent, with the client's own in the places that are personal."""
        if self.shared is not None:
            sent = self.shared.put(self.shared.take(sent), Weights.of(state))
        found = self._call("start", sent, state, phase, held=[sent, state])
        self.expect(_same_weights(found, sent), "start", found, f"weights like those sent: {_kind(sent.params)}")
        return found  # type: ignore[no-any-return]

    def start_velocity(self, state: Tensors, phase: str, params: Tensor) -> Tensor | None:
        found = self._call("start_velocity", state, phase, held=[state])
        fine = found is None or _alike(found, params)
        self.expect(fine, "start_velocity", found, f"None or a velocity {_kind(params)}")
        return found  # type: ignore[no-any-return]

    def loss(self, batch: Batch, local: Local) -> Loss:
        """What each client minimises (...,), and its terms without their weights, each (...,)."""
        found = self._call("loss", batch, local, held=[local])
        names = self.term_names()
        fine = isinstance(found, Mapping) and set(found) == set(names)
        got = list(found) if isinstance(found, Mapping) else found
        self.expect(fine, "loss", got, f"the terms {', '.join(names) or '(none)'} that term_names announces")
        terms = [term if isinstance(term, Term) else Term(term) for term in (found[name] for name in names)]
        waiting = [place for place, term in enumerate(terms) if callable(term.values)]
        parts: dict[int, tuple[Tensor, Tensor]] = {}
        for place, term in enumerate(terms):
            if place not in waiting:
                parts[place] = self._part(names[place], term, batch)
        waiting.reverse()  # the first, most often cross-entropy, stays on the main stream
        later = at_once([partial(self._part, names[place], terms[place], batch) for place in waiting])
        parts |= dict(zip(waiting, later, strict=True))
        total = parts[0][0]
        for place in range(1, len(terms)):
            total = total + parts[place][0]
        return total, [parts[place][1] for place in range(len(terms))]

    def _part(self, name: str, term: Term, batch: Batch) -> tuple[Tensor, Tensor]:
        """A term times its weight, and without it."""
        values, counted, weight = term.values, term.counted, term.weight
        if callable(values):
            with self._naming("loss"):
                found = values()
            pair = isinstance(found, tuple) and len(found) == 2
            values, counted = found if pair else (found, counted)  # type: ignore[assignment]
        lead, samples = batch.labels.shape[:-1], batch.labels.shape
        fine = isinstance(values, Tensor) and values.is_floating_point() and values.shape in (lead, samples)
        self.expect(
            fine, "loss", f"{name} {_kind(values)}",
            f"one value for each client {tuple(lead)}, or for each sample {tuple(samples)}: sums and means are over "
            "the last axis alone (batch.mean)",
        )  # fmt: skip
        fine = counted is None or (isinstance(counted, Tensor) and counted.shape == samples)
        fine = fine and (counted is None or counted.dtype == torch.bool)
        self.expect(fine, "loss", f"counted {_kind(counted)} of {name}", f"truth values {tuple(samples)}")
        fine = weight is None or isinstance(weight, (int, float))
        fine = fine or (isinstance(weight, Tensor) and weight.shape == lead and weight.is_floating_point())
        self.expect(fine, "loss", f"a weight {_kind(weight)} of {name}", f"a number or a tensor {tuple(lead)}")
        assert isinstance(values, Tensor)
        if values.shape != samples:
            mean = values
        elif isinstance(weight, Tensor):
            return batch.weighted(values, weight, counted)
        else:
            mean = batch.mean(values, counted)
        return mean if weight is None else weight * mean, mean if weight is None else mean.detach()

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        return self._vector("correct", gradient, local)

    def displace(self, gradient: Tensor, local: Local) -> Tensor:
        return self._vector("displace", gradient, local)

    def _vector(self, hook: str, gradient: Tensor, local: Local) -> Tensor:
        found = self._call(hook, gradient, local, held=[local])
        self.expect(_alike(found, gradient), hook, found, f"a vector {_kind(gradient)}")
        return found  # type: ignore[no-any-return]

    def reply(self, local: Local) -> Tensors:
        """What a client returns besides its weights; exactly what `returns` announces."""
        found = self._tensors("reply", local, held=[local])
        wanted = self.returns(local.weights.params.shape[-1], local.weights.params.dtype)
        self.expect(set(found) == set(wanted), "reply", sorted(found), f"what returns announces: {sorted(wanted)}")
        lead = local.weights.params.shape[:-1]
        for name, (shape, dtype) in wanted.items():
            same = found[name].shape == (*lead, *shape) and found[name].dtype == dtype
            self.expect(same, "reply", f"{name} {_kind(found[name])}", f"{(*lead, *shape)} of {dtype}")
        return found

    def next_state(self, local: Local) -> Tensors:
        """The client's state after a phase: named and shaped as it began."""
        whole = {} if self.shared is None or local.phase.second else local.weights.tensors()
        found = {**whole, **self._tensors("next_client_state", local, held=[local])}
        unknown = sorted(set(found) - set(local.state))
        self.expect(not unknown, "next_client_state", unknown, "names that first_client_state has")
        for name, tensor in found.items():
            before = local.state[name]
            fine = _alike(tensor, before)
            self.expect(fine, "next_client_state", f"{name} {_kind(tensor)}", f"{_kind(before)} as it began")
        return {name: tensor.detach().clone() for name, tensor in {**local.state, **found}.items()}


def holdings(kind: type[Method], shares: Sequence[Indices], samples: int) -> list[Indices]:
    """Which samples each client trains on, by the method's class."""
    try:
        found = kind.holdings(shares)
    except Exception as error:
        raise MethodError(kind.name, "holdings", f"{type(error).__name__}: {error}") from error
    fine = isinstance(found, list) and bool(found) and all(isinstance(each, np.ndarray) for each in found)
    fine = fine and all(len(each) and each.dtype == np.int64 for each in found)
    fine = fine and all(0 <= each.min() <= each.max() < samples for each in found)
    if not fine:
        expected = f"a list of arrays of int64 below {samples}, none of them empty"
        raise MethodError(kind.name, "holdings", f"gave {_shown(found)}, expected {expected}")
    return found


def made_method(kind: type[Method], options: Options, client: ClientProblem, server: ServerProblem) -> Method:
    """The method as an object."""
    try:
        return kind(options, client, server)
    except MethodError:
        raise
    except Exception as error:
        raise MethodError(kind.name, "__init__", f"{type(error).__name__}: {error}") from error


def _tensors_in(given: object) -> Iterator[Tensor]:
    """All tensors of nested mappings, lists and dataclasses."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, Mapping):
        for value in given.values():
            yield from _tensors_in(value)
    elif isinstance(given, (list, tuple)):
        for value in given:
            yield from _tensors_in(value)
    elif is_dataclass(given) and not isinstance(given, type):
        for each in fields(given):
            yield from _tensors_in(getattr(given, each.name))


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _is_moderate(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or not tensor.numel() or bool((tensor.abs() < FAR).all())


def _alike(found: object, like: Tensor) -> bool:
    return isinstance(found, Tensor) and found.shape == like.shape and found.dtype == like.dtype


def _same_weights(found: object, like: Weights) -> bool:
    return isinstance(found, Weights) and all(
        _alike(tensor, other) for tensor, other in zip(found.tensors().values(), like.tensors().values(), strict=True)
    )


def _kind(value: object) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {_kind(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
