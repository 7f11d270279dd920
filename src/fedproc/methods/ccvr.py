"""CCVR (Luo et al. 2021), after the last round of any method: a new classifier from the classes' means and covariances.

Every client returns, for each class it has, count, mean and covariance of z under the final model. The server pools
them exactly, as if it had seen every z, and makes a classifier of them: retrained on vectors drawn from one Gaussian a
class (`sampled`), or by linear discriminant analysis, without drawing any (`lda`). Encoder and head stay.
Shapes: K classes, Q features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedproc import streams
from fedproc.methods.method import Answer, Method, Options, Pass, Tensors, Weights

Recalibration = Literal["none", "sampled", "lda", "both"]

PASS = Pass("ccvr", "everyone", covariances=True)
EPOCHS, BATCH, LR, MOMENTUM = 10, 64, 1e-3, 0.9  # of the classifier
RIDGE = 1e-4  # of the mean variance, added to the variances of a covariance that cannot be drawn from
SHRINK = 0.01  # of the discriminant's covariance, to its mean variance
NEVER = -1e4  # the logit of a class that nobody has


class CCVR(Method):
    """In front of a method; it asks for the moments and evaluates the new models beside the final one."""

    plain: ClassVar[type[Method]]
    how: ClassVar[Recalibration]
    drawn: ClassVar[int]

    @classmethod
    def needs_mean(cls, options: Options) -> str | None:
        return super().needs_mean(options) or "--ccvr pools means and covariances exactly; leave it out"

    def client_half(self) -> Method:
        return self.plain(self.options, self.client)  # the client's half is the method's own

    def closing(self) -> Sequence[Pass]:
        return (*super().closing(), PASS)

    def collect_pass(self, state: Tensors, which: Pass, sums: Tensors, answer: Answer) -> Tensors:
        above = super().collect_pass(state, which, sums, answer)
        if which != PASS:
            return above
        means, covariances = (answer.tensors[name].double() for name in ("class_means", "class_covariances"))
        counts = answer.tensors["class_counts"].double()
        return {**above, **add_moments(sums, counts, means, covariances)}

    def receive_pass(self, state: Tensors, which: Pass, sums: Tensors) -> Tensors:
        above = super().receive_pass(state, which, sums)
        return {**above, **sums} if which == PASS else above

    def final_models(self, weights: Weights, state: Tensors) -> Mapping[str, Weights]:
        above = dict(super().final_models(weights, state))
        counts, means, covariances = (tensor.cpu() for tensor in pooled(state))
        size = means.numel() + len(means)  # the classifier is the last of the parameters
        now = weights.params[-size:].cpu().double()
        if self.how in ("sampled", "both"):
            z, labels = draw(counts, means, covariances, self.drawn, self.server.model_seed)
            above["ccvr"] = _with(weights, retrained(now, z, labels, len(means), self.server.model_seed))
        if self.how in ("lda", "both"):
            above["lda"] = _with(weights, discriminant(counts, means, covariances))
        return above


@lru_cache(maxsize=64)
def with_ccvr(method: type[Method], how: Recalibration, drawn: int) -> type[Method]:
    """The method with a new classifier at the end."""
    if how == "none":
        return method
    given = {"plain": method, "how": how, "drawn": drawn, "options_type": method.options_type}
    return type(method.__name__, (CCVR, method), {**given, "__module__": method.__module__})


def add_moments(sums: Tensors, counts: Tensor, means: Tensor, covariances: Tensor) -> Tensors:
    """One more client's counts (K), means (K, Q) and unbiased covariances (K, Q, Q) in the sums, all in float64."""
    totals = counts.unsqueeze(-1) * means
    squares = (counts - 1).clamp(min=0).view(-1, 1, 1) * covariances + means.unsqueeze(-1) * totals.unsqueeze(-2)
    found = {"ccvr_counts": counts, "ccvr_totals": totals, "ccvr_squares": squares}
    return {name: sums[name] + tensor if name in sums else tensor for name, tensor in found.items()}


def pooled(sums: Tensors) -> tuple[Tensor, Tensor, Tensor]:
    """Counts, means and unbiased covariances of all clients' samples together; 0 of fewer than one and two samples."""
    counts = sums["ccvr_counts"]
    means = sums["ccvr_totals"] / counts.clamp(min=1).unsqueeze(-1)
    away = sums["ccvr_squares"] - means.unsqueeze(-1) * sums["ccvr_totals"].unsqueeze(-2)
    covariances = away / (counts - 1).clamp(min=1).view(-1, 1, 1)
    return counts, means, covariances * (counts > 1).view(-1, 1, 1)


def draw(counts: Tensor, means: Tensor, covariances: Tensor, each: int, seed: int) -> tuple[Tensor, Tensor]:
    """`each` vectors from the Gaussian of each class that somebody has, and their labels."""
    roots, failed = torch.linalg.cholesky_ex(covariances)
    spread = covariances.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    eye = torch.eye(means.shape[-1], dtype=means.dtype)
    ridged, _ = torch.linalg.cholesky_ex(covariances + (RIDGE * spread).view(-1, 1, 1) * eye)
    roots = torch.where((failed > 0).view(-1, 1, 1), ridged, roots)
    roots = torch.where((spread > 0).view(-1, 1, 1), roots, torch.zeros_like(roots))  # one sample: its very place
    vectors, labels = [], []
    for k in counts.nonzero().flatten().tolist():
        noise = streams.normals(streams.key(seed, streams.Purpose.CCVR, k), each * means.shape[-1])
        vectors.append((means[k] + noise.view(each, -1) @ roots[k].T).float())
        labels.append(torch.full((each,), k))
    return torch.cat(vectors), torch.cat(labels)


def retrained(classifier: Tensor, z: Tensor, labels: Tensor, classes: int, seed: int) -> Tensor:
    """The classifier (K Q + K,), weights then biases, after SGD on the cross-entropy of these vectors."""
    weight = torch.cat([classifier[:-classes].view(classes, -1), classifier[-classes:].view(-1, 1)], dim=1)
    velocity = torch.zeros_like(weight)
    for epoch in range(EPOCHS):
        order = streams.order(streams.key(seed, streams.Purpose.CCVR, classes, epoch), len(labels))
        for batch in torch.split(order, BATCH):
            inputs = torch.nn.functional.pad(z[batch].double(), (0, 1), value=1.0)
            slope = (inputs @ weight.T).softmax(dim=-1)
            slope[torch.arange(len(batch)), labels[batch]] -= 1
            velocity.mul_(MOMENTUM).add_(slope.T @ inputs / len(batch))
            weight.sub_(velocity, alpha=LR)
    return torch.cat([weight[:, :-1].flatten(), weight[:, -1]])


def discriminant(counts: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
    """The classifier C^-1 m_k with biases -m_k' C^-1 m_k / 2, C the mean of the classes' covariances, shrunk."""
    held = counts > 0
    common = covariances[held].mean(dim=0)
    variance = common.diagonal().mean()
    eye = torch.eye(len(common), dtype=common.dtype)
    common = (1 - SHRINK) * common + SHRINK * variance * eye if variance > 0 else eye
    weight = torch.linalg.solve(common, means.T).T
    bias = -(means * weight).sum(dim=-1) / 2
    return torch.cat([(weight * held.unsqueeze(-1)).flatten(), torch.where(held, bias, NEVER)])


def _with(weights: Weights, classifier: Tensor) -> Weights:
    params = weights.params.clone()
    params[-len(classifier) :] = classifier.to(params)
    return replace(weights, params=params)
