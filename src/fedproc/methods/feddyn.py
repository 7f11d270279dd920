"""FedDyn (Acar et al. 2021): each client's loss is bent by how far it has moved so far, until all share one minimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.method import Answer, Batch, Local, Tensors, Term, Terms, Weights


class Options(method.Options):
    alpha: float = Field(0.01, ge=0, description="strength of the bending")
    equal: bool = Field(
        False,
        description="the same alpha for all clients, which minimises the mean over clients; otherwise those with few "
        "samples have more, and it is the mean over samples",
    )


class FedDyn(FedAvg):
    """Adds (alpha_i/2) |w - w^t + d_i|^2, where d_i is the sum of the client's moves w_i - w^t in earlier rounds. The
    server keeps D, the mean of d_i over all clients, and sends the plain mean of the weights plus D.
    """

    name: ClassVar[str] = "feddyn"
    summary: ClassVar[str] = "losses bent by the clients' moves so far (Acar et al. 2021)"
    family: ClassVar[str] = "client drift"
    options_type: ClassVar[type[method.Options]] = Options
    additive: ClassVar[bool] = True
    options: Options

    @classmethod
    def needs_mean(cls, options: method.Options) -> str | None:
        above = super().needs_mean(options)
        return above or "the server's D must stay the mean of what each client keeps of its own moves"

    @classmethod
    def unprotected(cls, options: method.Options) -> str | None:
        assert isinstance(options, Options)
        if not options.equal:
            return f"its alpha goes by the clients' sizes, which stay hidden; take --{cls.name}.equal true"
        return super().unprotected(options)

    # the server's half

    def first_state(self, params: int) -> Tensors:
        return {**super().first_state(params), "moved": torch.zeros(params, dtype=self.client.dtype)}

    def settings(self, t: int) -> Mapping[str, float]:
        sizes = self.server.client_sizes
        return {**super().settings(t), "mean_samples": sum(sizes) / len(sizes)}

    def shares(self, samples: Sequence[int]) -> Sequence[float]:
        return [1 / len(samples)] * len(samples)

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        moved = sums["moved"] if "moved" in sums else state["moved"].clone()
        share = answer.clients / len(self.server.client_sizes)
        moved.add_(answer.tensors["params"] - answer.sent["params"], alpha=share)
        return {**super().collect(state, sums, answer), "moved": moved}

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        return {**super().receive(state, sums), "moved": sums.get("moved", state["moved"])}

    def finish(self, params: Tensor, state: Tensors) -> Tensor:
        return super().finish(params, state) + state["moved"]

    def final_models(self, weights: Weights, state: Tensors) -> Mapping[str, Weights]:
        """The plain mean of the last round's clients."""
        mean = replace(weights, params=weights.params - state["moved"])
        return {**super().final_models(weights, state), "clients_mean": mean}

    # the client's half

    def _alpha(self, local: Local) -> Tensor:
        """alpha_i (...,)."""
        samples = local.class_counts.sum(dim=-1)
        if self.options.equal:
            return torch.full_like(samples, self.options.alpha)
        return self.options.alpha * local.settings["mean_samples"] / samples.clamp(min=1)

    def _away(self, local: Local) -> Tensor:
        return local.weights.params.detach() - local.start.params + local.state["moved"]

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), "squared_distance")

    def loss(self, batch: Batch, local: Local) -> Terms:
        def squared_distance() -> Tensor:
            length: Tensor = torch.linalg.vector_norm(self._away(local), dim=-1)
            return length.square()

        return {**super().loss(batch, local), "squared_distance": Term(squared_distance, self._alpha(local) / 2)}

    def correct(self, gradient: Tensor, local: Local) -> Tensor:
        return super().correct(gradient, local) + self._alpha(local).unsqueeze(-1) * self._away(local)

    def first_client_state(self, client: int, sent: Weights, fresh: Callable[[int], Weights]) -> Tensors:
        return {**super().first_client_state(client, sent, fresh), "moved": torch.zeros_like(sent.params)}

    def next_client_state(self, local: Local) -> Tensors:
        above = super().next_client_state(local)
        return {**above, "moved": self._away(local)} if local.phase.returns else above
