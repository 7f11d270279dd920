"""FedTGP (Zhang et al. 2024): FedProto whose prototypes the server learns, so that they stay apart.

Shapes: n class means of all clients, K classes, Q features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedproc import streams
from fedproc.methods import fedproto, method
from fedproc.methods.fedproto import FedProto
from fedproc.methods.method import Answer, Tensors

LAYERS = ("embedding", "weight1", "bias1", "weight2", "bias2")


class Options(fedproto.Options):
    weight: float = Field(10.0, ge=0, description="lambda, of the pull to the prototypes")
    models: Literal["shared", "personal"] = Field(
        "personal", description="weights stay at each client, as in the paper, or are averaged as in FedAvg"
    )
    server_epochs: int = Field(100, ge=0, description="epochs over the clients' class means, in each round")
    server_batch: int = Field(10, ge=1, description="class means in a step of the server")
    server_lr: float = Field(0.01, gt=0, description="learning rate of the server's steps")
    margin: float = Field(100.0, ge=0, description="the most by which a mean's distance from its own class is enlarged")


class FedTGP(FedProto):
    """c_k = F(e_k), where F is linear, ReLU, linear, and e_k a vector, all learned by the server: each client's class
    mean shall be nearer to its own c_k than to the others by a margin, the largest distance of a class's centre from
    its nearest other.
    """

    name: ClassVar[str] = "fedtgp"
    summary: ClassVar[str] = "FedProto with prototypes that the server learns (Zhang et al. 2024)"
    family: ClassVar[str] = "personal"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    @classmethod
    def unprotected(cls, options: method.Options) -> str | None:
        return "its server learns from each client's class means, and has only their noisy sum"

    def _key(self, *path: int) -> int:
        return streams.key(self.server.model_seed, streams.Purpose.PROTOTYPES, *path)

    def first_state(self, params: int) -> Tensors:
        classes, features = self.client.classes, self.client.features
        shapes = [(classes, features), (features, features), (features,), (features, features), (features,)]
        drawn = {"embedding": streams.normals(self._key(0), classes * features).view(classes, features)}
        for place, (name, shape) in enumerate(list(zip(LAYERS, shapes, strict=True))[1:], start=1):
            values = streams.uniforms(self._key(place), math.prod(shape)).view(shape)
            drawn[name] = (2 * values - 1) / math.sqrt(features)  # as torch begins a linear layer
        made = {name: tensor.to(self.client.dtype) for name, tensor in drawn.items()}
        return {**super().first_state(params), **made, "trained": torch.zeros(1, dtype=torch.int64)}

    def _added(self, sums: Tensors, answer: Answer) -> Tensors:
        means, counts = answer.tensors["class_means"], answer.tensors["class_counts"]
        held = counts.nonzero().flatten()
        by_count = counts[held].to(means)
        weights = by_count if self.options.weighting == "count" else torch.ones_like(by_count)
        rows = {"means": means[held], "labels": held, "weights": weights}
        return {**sums, **{name: torch.cat([sums[name], row]) if name in sums else row for name, row in rows.items()}}

    def _merged(self, state: Tensors, sums: Tensors) -> Tensors:
        if "means" not in sums or not len(sums["means"]):
            return state
        means, labels, options = sums["means"], sums["labels"], self.options
        seen = F.one_hot(labels, self.client.classes).T.to(means)
        margin = min(_gap(seen @ means, seen.sum(dim=1)), options.margin)
        layers = {name: state[name].to(means, copy=True).requires_grad_() for name in LAYERS}
        numbers = torch.arange(options.server_epochs)
        orders = streams.orders(self._key(len(LAYERS), int(state["trained"])), numbers, len(labels)).to(means.device)
        for order in orders:
            for some in order.split(options.server_batch):
                with torch.enable_grad():
                    loss = _loss(layers, means[some], labels[some], sums["weights"][some], margin)
                for layer, slope in zip(layers.values(), torch.autograd.grad(loss, [*layers.values()]), strict=True):
                    layer.data.sub_(slope, alpha=options.server_lr)
        layers = {name: tensor.detach() for name, tensor in layers.items()}
        known = state["known"].to(means.device) | (seen.sum(dim=1) > 0)
        prototypes = _generated(layers)
        prototypes = torch.where(known.unsqueeze(-1), prototypes, torch.zeros_like(prototypes))
        return {**state, **layers, "prototypes": prototypes, "known": known, "trained": state["trained"] + 1}


def _generated(layers: Mapping[str, Tensor]) -> Tensor:
    """c (K, Q)."""
    hidden = F.relu(layers["embedding"] @ layers["weight1"].T + layers["bias1"])
    made: Tensor = hidden @ layers["weight2"].T + layers["bias2"]
    return made


def _loss(layers: Mapping[str, Tensor], means: Tensor, labels: Tensor, weights: Tensor, margin: float) -> Tensor:
    """The cross-entropy of negative distances, that of the own class enlarged by the margin."""
    squares = (means.unsqueeze(1) - _generated(layers)).square().sum(dim=-1)
    distances = torch.where(squares > 0, squares, 1e-30).sqrt() + margin * F.one_hot(labels, squares.shape[1])
    return (weights * F.cross_entropy(-distances, labels, reduction="none")).sum() / weights.sum()


def _gap(sums: Tensor, counts: Tensor) -> float:
    """The largest distance of a class's centre from its nearest other; without bound where there is none."""
    centres = sums[counts > 0] / counts[counts > 0].unsqueeze(-1)
    if len(centres) < 2:
        return math.inf
    distances = torch.cdist(centres, centres).fill_diagonal_(math.inf)
    return float(distances.min(dim=1).values.max())
