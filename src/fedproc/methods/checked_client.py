"""The client's half of a method as lanes call it: every answer is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedproc import optimizers
from fedproc.kernels.forks import at_once
from fedproc.methods import known
from fedproc.methods.checked import Checked, alike, kind, same_weights, versions
from fedproc.methods.method import Batch, Local, Method, Term
from fedproc.protocol.payload import Tensors
from fedproc.protocol.weights import Shared, Weights

if TYPE_CHECKING:
    from fedproc.kernels.losses import Share

Loss = tuple[Tensor, list[Tensor]]


class CheckedClient(Checked):
    """The client's half. `shared` is what clients share of a model, None where that is all of it."""

    def __init__(self, method: Method, shared: Shared | None = None) -> None:
        super().__init__(method)
        self.shared = shared
        self.moves = type(method).displace is not Method.displace  # whether a second gradient is taken
        self._kinds: dict[str, str] | None = None  # of a client's state, the same for all
        self._names: tuple[str, ...] = ()

    def first_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        """A client's state before its first round."""
        whole = {} if self.shared is None else sent.tensors()
        found = {**whole, **self._tensors("first_client_state", client, sent, fresh, held=[sent])}
        kinds = {name: kind(tensor) for name, tensor in sorted(found.items())}
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
        self.expect(same_weights(found, sent), "start", found, f"weights like those sent: {kind(sent.params)}")
        return found  # type: ignore[no-any-return]

    def own_model(self, state: Tensors, like: Weights) -> Weights:
        """The client's second model."""
        found = self._call("own_model", state, held=[state])
        self.expect(same_weights(found, like), "own_model", found, f"weights like those sent: {kind(like.params)}")
        return found  # type: ignore[no-any-return]

    def start_optimizer(self, state: Tensors, phase: str, params: Tensor) -> Tensors | None:
        found = self._call("start_optimizer", state, phase, held=[state])
        if found is None:
            return None
        wanted = optimizers.first_state(self.method.client.optimizer, params)
        fine = isinstance(found, Mapping) and set(found) == set(wanted)
        fine = fine and all(alike(found[name], tensor) for name, tensor in wanted.items())
        expected = {name: kind(tensor) for name, tensor in wanted.items()}
        self.expect(fine, "start_optimizer", found, f"None or what the optimizer keeps: {expected}")
        return dict(found)

    def loss(self, batch: Batch, local: Local, thorough: bool = True) -> Loss:
        """What each client minimises (...,), and its terms without their weights, each (...,). Steps after a client's
        first one need not be checked as thoroughly.
        """
        return self.total(batch, self.terms(batch, local, thorough), thorough)

    def terms(self, batch: Batch, local: Local, thorough: bool = True) -> list[Term]:
        """The terms of the loss, in order."""
        if thorough:
            found = self._call("loss", batch, local, held=[local, batch])
            self._names = names = self.term_names()
            fine = isinstance(found, Mapping) and set(found) == set(names)
            got = list(found) if isinstance(found, Mapping) else found
            self.expect(fine, "loss", got, f"the terms {', '.join(names) or '(none)'} that term_names announces")
        else:
            names = self._names
            with self._naming("loss"):
                found = self.method.loss(batch, local)
        return [term if isinstance(term, Term) else Term(term) for term in (found[name] for name in names)]

    def slopes(self, batch: Batch, terms: Sequence[Term], sums: Tensor) -> known.Slopes | None:
        """The slopes of the loss by z and logits, where they are known; its numbers are added to the sums."""
        self._without_hook(batch)
        return known.slopes(terms, batch, sums)

    def slopes_of_lanes(
        self, batch: Batch, terms: Sequence[Term], by_z: Tensor, by_logits: Tensor
    ) -> list[Share] | None:
        """The same of lanes side by side, written where they are wanted; what there is to note of each term."""
        self._without_hook(batch)
        return known.slopes_of_lanes(terms, batch, by_z, by_logits)

    def total(self, batch: Batch, terms: Sequence[Term], thorough: bool = True) -> Loss:
        """What `loss` gives, of its terms."""
        names = self._names
        part = partial(self._part, batch, thorough)
        waiting = [place for place, term in enumerate(terms) if callable(term.values)]
        parts = {
            place: part(names[place], term) for place, term in enumerate(terms) if not callable(term.values)
        }  # fmt: skip
        waiting.reverse()  # the first, most often cross-entropy, stays on the main stream
        later = at_once([partial(part, names[place], terms[place]) for place in waiting])
        parts.update(zip(waiting, later, strict=True))
        self._without_hook(batch)
        total = parts[0][0]
        for place in range(1, len(terms)):
            total = total + parts[place][0]
        return total, [parts[place][1] for place in range(len(terms))]

    def _part(self, batch: Batch, thorough: bool, name: str, term: Term) -> tuple[Tensor, Tensor]:
        """A term times its weight, and without it."""
        values, counted, weight = term.values, term.counted, term.weight
        if callable(values):
            before = versions(batch) if thorough else []
            with self._naming("loss"):
                found = values()
            self.unchanged("loss", before)
            values, counted = found if isinstance(found, tuple) and len(found) == 2 else (found, counted)
        if thorough:
            self._check_term(name, values, counted, weight, batch)
        assert isinstance(values, Tensor)
        if values.dim() != batch.labels.dim():
            mean = values
        elif isinstance(weight, Tensor):
            return batch.weighted(values, weight, counted)
        else:
            mean = batch.mean(values, counted)
        return mean if weight is None else weight * mean, mean if weight is None else mean.detach()

    def _without_hook(self, batch: Batch) -> None:
        """Kernels give z and logits their gradients apart, and clients side by side share one z."""
        if batch.z._backward_hooks:
            self._fail(
                "loss",
                "puts a hook on batch.z, which would miss what its gradient gets through the logits; change the "
                "gradient in `correct`",
            )

    def _check_term(self, name: str, values: object, counted: object, weight: object, batch: Batch) -> None:
        lead, samples = batch.labels.shape[:-1], batch.labels.shape
        fine = isinstance(values, Tensor) and values.is_floating_point() and values.shape in (lead, samples)
        self.expect(
            fine, "loss", f"{name} {kind(values)}",
            f"one value for each client {tuple(lead)}, or for each sample {tuple(samples)}: sums and means are over "
            "the last axis alone (batch.mean)",
        )  # fmt: skip
        fine = counted is None or (isinstance(counted, Tensor) and counted.shape == samples)
        fine = fine and (counted is None or (isinstance(counted, Tensor) and counted.dtype == torch.bool))
        self.expect(fine, "loss", f"counted {kind(counted)} of {name}", f"truth values {tuple(samples)}")
        fine = weight is None or isinstance(weight, (int, float))
        fine = fine or (isinstance(weight, Tensor) and weight.shape == lead and weight.is_floating_point())
        self.expect(fine, "loss", f"a weight {kind(weight)} of {name}", f"a number or a tensor {tuple(lead)}")

    def correct(self, gradient: Tensor, local: Local, thorough: bool = True) -> Tensor:
        return self._vector("correct", gradient, local, thorough)

    def displace(self, gradient: Tensor, local: Local, thorough: bool = True) -> Tensor:
        return self._vector("displace", gradient, local, thorough)

    def _vector(self, hook: str, gradient: Tensor, local: Local, thorough: bool) -> Tensor:
        if not thorough:
            with self._naming(hook):
                return getattr(self.method, hook)(gradient, local)  # type: ignore[no-any-return]
        found = self._call(hook, gradient, local, held=[local])
        self.expect(alike(found, gradient), hook, found, f"a vector {kind(gradient)}")
        return found  # type: ignore[no-any-return]

    def reply(self, local: Local) -> Tensors:
        """What a client returns besides its weights; exactly what `returns` announces."""
        found = self._tensors("reply", local, held=[local])
        wanted = self.returns(local.weights.params.shape[-1], local.weights.params.dtype)
        self.expect(set(found) == set(wanted), "reply", sorted(found), f"what returns announces: {sorted(wanted)}")
        lead = local.weights.params.shape[:-1]
        for name, (shape, dtype) in wanted.items():
            same = found[name].shape == (*lead, *shape) and found[name].dtype == dtype
            self.expect(same, "reply", f"{name} {kind(found[name])}", f"{(*lead, *shape)} of {dtype}")
        return found

    def next_state(self, local: Local) -> Tensors:
        """The client's state after a phase: named and shaped as it began."""
        apart = self.shared is None or local.phase.second or local.phase.trains == "nothing"
        whole = {} if apart else local.weights.tensors()
        found = {**whole, **self._tensors("next_client_state", local, held=[local])}
        unknown = sorted(set(found) - set(local.state))
        self.expect(not unknown, "next_client_state", unknown, "names that first_client_state has")
        for name, tensor in found.items():
            before = local.state[name]
            fine = alike(tensor, before)
            self.expect(fine, "next_client_state", f"{name} {kind(tensor)}", f"{kind(before)} as it began")
        return {name: tensor.detach().clone() for name, tensor in {**local.state, **found}.items()}
