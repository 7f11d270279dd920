"""Passes over a client's data without training: class means, and covariances where they are wanted.

Shapes: B batch, K classes, Q features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from fedproc.lanes.batches import Feed, Step, prototype_plan
from fedproc.lanes.local import Net
from fedproc.lanes.setting import Job
from fedproc.protocol.payload import Tensors
from fedproc.protocol.task import MeansMode
from fedproc.prototypes import class_means, class_sums


class PlainNet(Net, Protocol):
    """A network of one client."""

    def clean_sums(self, job: Job) -> tuple[Tensor, Tensor] | None:
        """Sums (K, Q) by class of z of all the job's clean images, and counts (K), where one call gives them."""


def means_of(net: PlainNet, job: Job, mode: MeansMode, covariances: bool = False) -> Tensors:
    """Class means and counts of the job's samples under the net's weights."""
    classes, dtype = job.setting.spec.classes, net.weights.params.dtype
    summed = net.clean_sums(job) if mode == "clean" and not covariances else None
    if summed is not None:
        return {"class_means": class_means(*summed).to(dtype), "class_counts": summed[1]}
    feed = Feed(job.setting, prototype_plan(job, mode == "clean"))
    sums, counts = _sums(net, feed, classes, mode)
    means = class_means(sums, counts).to(dtype)
    found = {"class_means": means, "class_counts": counts}
    if covariances:
        found["class_covariances"] = _covariances(net, feed, classes, mode, means, counts)
    return found


@torch.no_grad()
def _sums(net: Net, feed: Feed, classes: int, mode: MeansMode) -> tuple[Tensor, Tensor]:
    """Sums (K, Q) by class, and counts (K).

    A clean pass is in evaluation mode; the other one uses batch statistics and leaves the running ones alone.
    """
    sums: Tensor | None = None
    counts: Tensor | None = None
    for step, z in _embedded(net, feed, mode):
        step_sums, step_counts = class_sums(z, step.labels, classes, step.mask)
        sums = step_sums if sums is None else sums + step_sums
        counts = step_counts if counts is None else counts + step_counts
    assert sums is not None and counts is not None
    return sums, counts


@torch.no_grad()
def _covariances(net: Net, feed: Feed, classes: int, mode: MeansMode, means: Tensor, counts: Tensor) -> Tensor:
    """Unbiased covariances (K, Q, Q), 0 of classes with fewer than two samples."""
    features = means.shape[-1]
    total = torch.zeros(classes, features, features, dtype=torch.float64, device=means.device)
    for step, z in _embedded(net, feed, mode):
        away = z.to(torch.float64) - means.to(torch.float64)[step.labels]
        for k in range(classes):
            chosen = step.labels == k if step.mask is None else (step.labels == k) & step.mask
            rows = away[chosen]
            total[k] += rows.T @ rows
    return (total / (counts - 1).clamp(min=1).view(-1, 1, 1)).to(means.dtype)


def _embedded(net: Net, feed: Feed, mode: MeansMode) -> Iterator[tuple[Step, Tensor]]:
    """Each batch with its z; running statistics are left as they were."""
    net.train(mode == "training")
    buffers, counters = net.weights.buffers.clone(), net.weights.counters.clone()
    for number in range(feed.steps):
        step: Step = feed[number]
        yield step, net.forward(step.images, step.mask)[0]
    net.weights.buffers.copy_(buffers)
    net.weights.counters.copy_(counters)
