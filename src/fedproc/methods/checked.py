"""Everything that a person's own code returns, checked where it is called: a method that breaks its contract is named
with its hook, whatever executor runs it, instead of training wrongly.

`CheckedServer` stands for a method in the round loop, `CheckedClient` in the lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedproc.errors import MethodError
from fedproc.kernels.forks import at_once
from fedproc.methods.method import Batch, Local, Method, Term
from fedproc.protocol.guard import Shapes
from fedproc.protocol.payload import Tensors
from fedproc.protocol.server_half import Answer, Pass
from fedproc.protocol.task import MeansMode, Phase
from fedproc.protocol.weights import NAMES, Shared, Weights

RESERVED = frozenset({*NAMES, "losses", "class_means", "class_counts", "class_covariances"})
Loss = tuple[Tensor, list[Tensor]]


class _Checked:
    """Calls hooks, naming method and hook in whatever goes wrong."""

    def __init__(self, method: Method) -> None:
        self.method = method

    def _call(self, hook: str, *given: Any) -> Any:
        try:
            return getattr(self.method, hook)(*given)
        except MethodError as error:
            raise MethodError(error.method, error.hook or hook, error.reason) from error
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise MethodError(self.method.name, hook, f"{type(error).__name__}: {error}") from error

    def _expect(self, fine: bool, hook: str, got: object, expected: str) -> None:
        if not fine:
            text = got if isinstance(got, str) else _shown(got)
            raise MethodError(self.method.name, hook, f"gave {text}, expected {expected}")

    def _tensors(self, hook: str, *given: Any) -> Tensors:
        found = self._call(hook, *given)
        self._expect(isinstance(found, Mapping), hook, found, "tensors by name")
        for name, tensor in found.items():
            self._expect(isinstance(name, str), hook, name, "names that are words")
            self._expect(isinstance(tensor, Tensor), hook, f"{name} = {_shown(tensor)}", "a tensor")
        return dict(found)


class CheckedServer(_Checked):
    """The server's half."""

    @property
    def rounds(self) -> int:
        return self.method.rounds

    @property
    def federated(self) -> bool:
        return self.method.federated

    @property
    def classes(self) -> int:
        return self.method.client.classes

    @property
    def features(self) -> int:
        return self.method.client.features

    @property
    def momentum(self) -> float:
        return self.method.client.momentum

    def knowing(self, client_sizes: Sequence[int]) -> CheckedServer:
        return CheckedServer(self.method.knowing(client_sizes))

    def depends_on_rounds(self) -> str | None:
        found: str | None = self._call("depends_on_rounds")
        return found

    def term_names(self) -> tuple[str, ...]:
        return term_names(self)

    def participants(self, t: int, sampled: Sequence[int]) -> Sequence[int]:
        found = list(self._call("participants", t, sampled))
        everyone = range(len(self.method.server.client_sizes))
        fine = len(set(found)) == len(found) and all(isinstance(c, int) and c in everyone for c in found)
        self._expect(fine, "participants", found, f"numbers of clients, each once, below {len(everyone)}")
        return sorted(found)

    def opening(self) -> Sequence[Pass]:
        return self._passes("opening")

    def passes(self, t: int) -> Sequence[Pass]:
        return self._passes("passes", t)

    def closing(self) -> Sequence[Pass]:
        return self._passes("closing")

    def _passes(self, hook: str, *given: Any) -> Sequence[Pass]:
        found = self._call(hook, *given)
        self._expect(
            isinstance(found, Sequence) and all(isinstance(each, Pass) for each in found), hook, found, "passes"
        )
        return tuple(found)

    def phases(self, t: int) -> tuple[Phase, ...]:
        found = self._call("phases", t)
        fine = isinstance(found, tuple) and found and all(isinstance(p, Phase) and p.epochs >= 0 for p in found)
        self._expect(bool(fine), "phases", found, "a tuple of phases")
        self._expect(any(phase.returns for phase in found), "phases", found, "one phase at least that returns weights")
        names = [phase.name for phase in found]
        self._expect(len(set(names)) == len(names), "phases", names, "phases with names of their own")
        return found  # type: ignore[no-any-return]

    def class_means(self, t: int) -> MeansMode | None:
        found = self._call("class_means", t)
        self._expect(found in (None, "clean", "training"), "class_means", found, "clean, training or None")
        return found  # type: ignore[no-any-return]

    def first_state(self, params: int) -> Tensors:
        return self._tensors("first_state", params)

    def settings(self, t: int) -> Mapping[str, float]:
        found = self._call("settings", t)
        self._expect(isinstance(found, Mapping), "settings", found, "numbers by name")
        for name, value in found.items():
            number = isinstance(value, (int, float)) and math.isfinite(value)
            self._expect(number and name != "lr", "settings", f"{name} = {_shown(value)}", "finite numbers besides lr")
        return {name: float(value) for name, value in found.items()}

    def send(self, state: Tensors) -> Tensors:
        found = self._tensors("send", state)
        taken = sorted(RESERVED & set(found))
        self._expect(not taken, "send", taken, "names of its own")
        return found

    def returns(self, params: int, dtype: torch.dtype) -> Shapes:
        return returns(self, params, dtype)

    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        found = [float(share) for share in self._call("shares", samples)]
        fine = len(found) == len(samples) and all(math.isfinite(share) and share >= 0 for share in found)
        self._expect(fine and sum(found) > 0, "shares", found, f"{len(samples)} shares of at least 0")
        return found

    def step_numbers(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self._call("step_numbers")
        return found

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        return self._tensors("collect", state, sums, answer)

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        return self._like("receive", state, self._tensors("receive", state, sums))

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors:
        return self._tensors("collect_pass", state, which, sums, answer)

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors:
        return self._like("receive_pass", state, self._tensors("receive_pass", state, which, sums))

    def _like(self, hook: str, before: Tensors, after: Tensors) -> Tensors:
        """What the server keeps may grow, but nothing of it is lost or changes its kind."""
        lost = sorted(set(before) - set(after))
        self._expect(not lost, hook, f"a state without {', '.join(lost)}", "all of it back: {**state, ...}")
        for name, tensor in before.items():
            same = tensor.shape == after[name].shape and tensor.dtype == after[name].dtype
            self._expect(same, hook, f"{name} {_kind(after[name])}", f"{_kind(tensor)} as before")
        return after

    def finish(self, params: Tensor, state: Tensors) -> Tensor:
        found = self._call("finish", params, state)
        same = isinstance(found, Tensor) and found.shape == params.shape and found.dtype == params.dtype
        self._expect(same, "finish", found, f"parameters {_kind(params)}")
        return found  # type: ignore[no-any-return]

    def prototypes(self, state: Tensors) -> tuple[Tensor, Tensor] | None:
        found = self._call("prototypes", state)
        if found is not None:
            shape = (self.classes, self.features)
            fine = isinstance(found, tuple) and len(found) == 2 and all(isinstance(each, Tensor) for each in found)
            fine = fine and tuple(found[0].shape) == shape and tuple(found[1].shape) == shape[:1]
            self._expect(fine, "prototypes", found, f"prototypes {shape} and which are known {shape[:1]}")
        return found  # type: ignore[no-any-return]

    def final_models(self, weights: Weights, state: Tensors) -> Mapping[str, Weights]:
        found: Mapping[str, Weights] = self._call("final_models", weights, state)
        for name, model in found.items():
            same = isinstance(model, Weights) and model.params.shape == weights.params.shape
            self._expect(same and bool(name), "final_models", name, "models like the one given, by name")
        return found


class CheckedClient(_Checked):
    """The client's half. `shared` is what clients share of a model, None where that is all of it."""

    def __init__(self, method: Method, shared: Shared | None = None) -> None:
        super().__init__(method)
        self.shared = shared
        self.moves = type(method).displace is not Method.displace  # whether a second gradient is taken

    def first_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        """A client's state before its first round."""
        whole = {} if self.shared is None else sent.tensors()
        found = {**whole, **self._tensors("first_client_state", client, sent, fresh)}
        return {name: tensor.detach().clone() for name, tensor in found.items()}

    def start(self, sent: Weights, state: Tensors, phase: str) -> Weights:
        """What a phase starts from: what was sent, with the client's own in the places that are personal."""
        if self.shared is not None:
            sent = self.shared.put(self.shared.take(sent), Weights.of(state))
        found = self._call("start", sent, state, phase)
        fine = isinstance(found, Weights) and found.params.shape == sent.params.shape
        self._expect(fine, "start", found, f"weights with parameters {_kind(sent.params)}")
        return found  # type: ignore[no-any-return]

    def start_velocity(self, state: Tensors, phase: str, params: Tensor) -> Tensor | None:
        found = self._call("start_velocity", state, phase)
        fine = found is None or (isinstance(found, Tensor) and found.shape == params.shape)
        self._expect(fine, "start_velocity", found, f"None or a velocity {_kind(params)}")
        return found  # type: ignore[no-any-return]

    def loss(self, batch: Batch, local: Local) -> Loss:
        """What each client minimises (...,), and its terms without their weights, each (...,)."""
        found = self._call("loss", batch, local)
        names = term_names(self)
        fine = isinstance(found, Mapping) and set(found) == set(names)
        got = list(found) if isinstance(found, Mapping) else found
        self._expect(fine, "loss", got, f"the terms {', '.join(names) or '(none)'} that term_names announces")
        terms = [term if isinstance(term, Term) else Term(term) for term in (found[name] for name in names)]
        waiting = [place for place, term in enumerate(terms) if callable(term.values)]
        parts: dict[int, tuple[Tensor, Tensor]] = {}
        for place, term in enumerate(terms):
            if place not in waiting:
                parts[place] = self._part(names[place], term, batch)
        later = at_once([partial(self._part, names[place], terms[place], batch) for place in waiting])
        parts |= dict(zip(waiting, later, strict=True))
        total = parts[0][0]
        for place in range(1, len(terms)):
            total = total + parts[place][0]
        return total, [parts[place][1] for place in range(len(terms))]

    def _part(self, name: str, term: Term, batch: Batch) -> tuple[Tensor, Tensor]:
        """A term times its weight, and without it."""
        values, counted = term.values, term.counted
        if callable(values):
            try:
                found = values()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                raise MethodError(self.method.name, "loss", f"{name}: {type(error).__name__}: {error}") from error
            values, counted = found if isinstance(found, tuple) else (found, counted)
        lead, samples = batch.labels.shape[:-1], batch.labels.shape
        fine = isinstance(values, Tensor) and values.is_floating_point() and values.shape in (lead, samples)
        self._expect(
            fine, "loss", f"{name} {_kind(values)}",
            f"one value for each client {tuple(lead)}, or for each sample {tuple(samples)}: sums and means are over "
            "the last axis alone (batch.mean)",
        )  # fmt: skip
        weight = term.weight
        if isinstance(weight, Tensor):
            self._expect(weight.shape == lead, "loss", f"a weight {_kind(weight)} of {name}", f"shape {tuple(lead)}")
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
        found = self._call(hook, gradient, local)
        same = isinstance(found, Tensor) and found.shape == gradient.shape and found.dtype == gradient.dtype
        self._expect(same, hook, found, f"a vector {_kind(gradient)}")
        return found  # type: ignore[no-any-return]

    def reply(self, local: Local) -> Tensors:
        """What a client returns besides its weights; exactly what `returns` announces."""
        found = self._tensors("reply", local)
        wanted = returns(self, local.weights.params.shape[-1], local.weights.params.dtype)
        self._expect(set(found) == set(wanted), "reply", sorted(found), f"what returns announces: {sorted(wanted)}")
        lead = local.weights.params.shape[:-1]
        for name, (shape, dtype) in wanted.items():
            same = found[name].shape == (*lead, *shape) and found[name].dtype == dtype
            self._expect(same, "reply", f"{name} {_kind(found[name])}", f"{(*lead, *shape)} of {dtype}")
        return found

    def next_state(self, local: Local) -> Tensors:
        """The client's state after a phase: named and shaped as it began."""
        whole = {} if self.shared is None else local.weights.tensors()
        found = {**whole, **self._tensors("next_client_state", local)}
        unknown = sorted(set(found) - set(local.state))
        self._expect(not unknown, "next_client_state", unknown, "names that first_client_state has")
        for name, tensor in found.items():
            before = local.state[name]
            same = tensor.shape == before.shape and tensor.dtype == before.dtype
            self._expect(same, "next_client_state", f"{name} {_kind(tensor)}", f"{_kind(before)} as it began")
        return {name: tensor.detach().clone() for name, tensor in {**local.state, **found}.items()}


def term_names(checked: _Checked) -> tuple[str, ...]:
    found = checked._call("term_names")
    fine = isinstance(found, tuple) and bool(found) and all(isinstance(name, str) for name in found)
    checked._expect(fine and len(set(found)) == len(found), "term_names", found, "names, each once")
    return found  # type: ignore[no-any-return]


def returns(checked: _Checked, params: int, dtype: torch.dtype) -> Shapes:
    found = checked._call("returns", params, dtype)
    checked._expect(isinstance(found, Mapping), "returns", found, "shapes and dtypes by name")
    taken = sorted(RESERVED & set(found))
    checked._expect(not taken, "returns", taken, "names of its own")
    for name, entry in found.items():
        fine = isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[1], torch.dtype)
        checked._expect(fine, "returns", f"{name}: {_shown(entry)}", "(shape, dtype)")
    return {name: (tuple(shape), kind) for name, (shape, kind) in found.items()}


def rehearse(checked: CheckedClient, local: Local, classes: int, features: int) -> None:
    """Hold the client's hooks against themselves before anything is trained: for two clients side by side they must
    give what they give for each alone. `local` is a client at the start of its round, on the CPU, without a lane axis.
    """
    generator = torch.Generator().manual_seed(0)
    dtype = local.weights.params.dtype
    z = torch.randn(2, 3, features, generator=generator, dtype=torch.float64).to(dtype)
    logits = torch.randn(2, 3, classes, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.arange(6).view(2, 3) % classes
    pair = _pair(local)
    frozen = (z.flip(-1), logits.flip(-1))
    together = Batch(z, logits, labels, None, partial(_given, frozen))
    gradients = torch.stack([local.weights.params.detach(), local.weights.params.detach() * 0.5 + 0.01])
    total, terms = checked.loss(together, pair)
    corrected = checked.correct(gradients, pair)
    moved = checked.displace(gradients, pair) if checked.moves else gradients
    replies, states = checked.reply(pair), checked.next_state(pair)
    for lane in range(2):
        here = (frozen[0][lane], frozen[1][lane])
        own = Batch(z[lane], logits[lane], labels[lane], None, partial(_given, here))
        alone, own_terms = checked.loss(own, local)
        _same(checked, "loss", total[lane], alone)
        for one, other in zip(terms, own_terms, strict=True):
            _same(checked, "loss", one[lane], other)
        _same(checked, "correct", corrected[lane], checked.correct(gradients[lane], local))
        if checked.moves:
            _same(checked, "displace", moved[lane], checked.displace(gradients[lane], local))
        for hook, of_two, of_one in (
            ("reply", replies, checked.reply(local)),
            ("next_client_state", states, checked.next_state(local)),
        ):
            for name, tensor in of_one.items():
                _same(checked, hook, of_two[name][lane], tensor)


def _given(outputs: tuple[Tensor, Tensor], weights: Weights) -> tuple[Tensor, Tensor]:
    return outputs


def _pair(local: Local) -> Local:
    """The same client twice, side by side, without copies."""

    def twice(tensor: Tensor) -> Tensor:
        return tensor.expand(2, *tensor.shape)

    def both(tensors: Tensors) -> Tensors:
        return {name: twice(tensor) for name, tensor in tensors.items()}

    return replace(
        local,
        start=Weights.of(both(local.start.tensors())),
        weights=Weights.of(both(local.weights.tensors())),
        velocity=twice(local.velocity),
        sent=both(local.sent),
        settings=both(local.settings),
        state=both(local.state),
        steps=twice(local.steps),
        class_counts=twice(local.class_counts),
        log_shares=twice(local.log_shares),
    )


def _same(checked: CheckedClient, hook: str, of_two: Tensor, of_one: Tensor) -> None:
    tolerance = 1e-4 if of_one.dtype == torch.float32 else 1e-9
    fine = of_two.shape == of_one.shape and (
        torch.allclose(of_two, of_one, tolerance, tolerance, equal_nan=True)
        if of_one.is_floating_point()
        else torch.equal(of_two, of_one)
    )
    if not fine:
        raise MethodError(
            checked.method.name, hook,
            "gives a client other values when two train side by side than when it is alone: it must act on the last "
            "axes and leave those before them as they are",
        )  # fmt: skip


def _kind(value: object) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {_kind(value)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
