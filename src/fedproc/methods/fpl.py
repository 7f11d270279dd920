"""FPL (Huang et al. 2023): several prototypes a class, clusters of the clients' own, and their mean.

Shapes: m clients, K classes, C clusters, Q features.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedproc.methods import method
from fedproc.methods.fedavg import FedAvg
from fedproc.methods.fedproto import squared_distances
from fedproc.methods.method import Answer, Batch, Local, MeansMode, Tensors, Term, Terms
from fedproc.prototypes import unit

TERMS = ("prototype_loss", "prototype_distance")


class Options(method.Options):
    tau: float = Field(0.02, gt=0, description="temperature of the contrast between clusters")


class FPL(FedAvg):
    """Adds -log of the share of the clusters of a sample's own class among all clusters, by exp(cosine/tau), and the
    mean over features of (z - U_y)^2, where U_y is the mean of the clusters of its class. Before the first round there
    are none, and both are 0.
    """

    name: ClassVar[str] = "fpl"
    summary: ClassVar[str] = "contrast with clusters of the clients' class means (Huang et al. 2023)"
    family: ClassVar[str] = "prototypes"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    @classmethod
    def needs_mean(cls, options: method.Options) -> str | None:
        return super().needs_mean(options) or "its prototypes are clusters of each client's own class means"

    # the server's half

    def class_means(self, t: int) -> MeansMode | None:
        return "clean"

    def send(self, state: Tensors) -> Tensors:
        return {**super().send(state), **{name: state[name] for name in ("clusters", "there") if name in state}}

    def collect(self, state: Tensors, sums: Tensors, answer: Answer) -> Tensors:
        found = {"means": answer.tensors["class_means"], "counts": answer.tensors["class_counts"]}
        rows = {name: tensor.unsqueeze(0) for name, tensor in found.items()}
        rows = {name: torch.cat([sums[name], row]) if name in sums else row for name, row in rows.items()}
        return {**super().collect(state, sums, answer), **rows}

    def receive(self, state: Tensors, sums: Tensors) -> Tensors:
        """A class that no client of the round has keeps its old clusters."""
        above = super().receive(state, sums)
        if "means" not in sums:
            return above
        clusters, there = (tensor.to(sums["means"].device) for tensor in self._clusters(state))
        for k in sums["counts"].sum(dim=0).nonzero().flatten().tolist():
            found = cluster_means(sums["means"][sums["counts"][:, k] > 0, k])
            clusters[k], there[k] = 0, False
            clusters[k, : len(found)], there[k, : len(found)] = found.to(clusters), True
        return {**above, "clusters": clusters, "there": there}

    def _clusters(self, state: Tensors) -> tuple[Tensor, Tensor]:
        """Copies of the clusters (K, C, Q) and of which are there (K, C). A cluster has two members at least, but for
        that of a class which one client has.
        """
        if "clusters" in state:
            return state["clusters"].clone(), state["there"].clone()
        shape = (self.client.classes, max(1, len(self.server.client_sizes) // 2))
        clusters = torch.zeros(*shape, self.client.features, dtype=self.client.dtype)
        return clusters, torch.zeros(shape, dtype=torch.bool)

    def prototypes(self, state: Tensors) -> tuple[Tensor, Tensor] | None:
        return centres(*self._clusters(state))

    # the client's half

    def term_names(self) -> tuple[str, ...]:
        return (*super().term_names(), *TERMS)

    def loss(self, batch: Batch, local: Local) -> Terms:
        above, sent = super().loss(batch, local), local.sent
        if "clusters" not in sent:  # in the first round
            return {**above, **{name: torch.zeros_like(batch.z[..., 0]) for name in TERMS}}

        def contrast() -> tuple[Tensor, Tensor]:
            return cluster_contrast(batch.z, batch.labels, sent["clusters"], sent["there"], self.options.tau)

        def distance() -> tuple[Tensor, Tensor]:
            return squared_distances(batch.z, batch.labels, *centres(sent["clusters"], sent["there"]))

        return {**above, "prototype_loss": Term(contrast), "prototype_distance": Term(distance)}


def cluster_means(vectors: Tensor) -> Tensor:
    """The means (C, Q) of clusters of vectors (m, Q): each is linked to the one with the largest cosine, and what is
    linked, directly or not, is one cluster.
    """
    count = len(vectors)
    if count == 1:
        return vectors
    directions = unit(vectors)
    nearest = (directions @ directions.T).fill_diagonal_(-torch.inf).argmax(dim=-1).tolist()
    of = list(range(count))  # the cluster that each vector is in
    for one, other in enumerate(nearest):
        joined, left = of[one], of[other]
        of = [joined if cluster == left else cluster for cluster in of]
    groups = [[place for place in range(count) if of[place] == cluster] for cluster in dict.fromkeys(of)]
    return torch.stack([vectors[group].mean(dim=0) for group in groups])


def centres(clusters: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """The mean (..., K, Q) of the clusters of each class, and which classes have any (..., K)."""
    sizes = there.sum(dim=-1)
    return clusters.sum(dim=-2) / sizes.clamp(min=1).unsqueeze(-1), sizes > 0


def cluster_contrast(z: Tensor, labels: Tensor, clusters: Tensor, there: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """-log of the share of the own class's clusters (..., B), 0 where it has none, and where it has some."""
    cosines = unit(z) @ unit(clusters).flatten(-3, -2).transpose(-1, -2) / tau  # (..., B, K C)
    cosines = cosines.masked_fill(~there.flatten(-2).unsqueeze(-2), torch.finfo(z.dtype).min / 2)
    by_class = cosines.reshape(*labels.shape, *clusters.shape[-3:-1]).logsumexp(dim=-1)
    values = by_class.logsumexp(dim=-1) - by_class.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    counted = there.any(dim=-1).gather(-1, labels)
    return torch.where(counted, values, torch.zeros_like(values)), counted
