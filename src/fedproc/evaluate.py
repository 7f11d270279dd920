"""Evaluation of one model on held-out images, and the numbers that are read off it.

Shapes: N samples, K classes, m clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc.data.augment import Normalisation
from fedproc.payload import Expected, Payload
from fedproc.prototypes import nearest

CHUNK, GPU_CHUNK = 256, 16384
WORST = 1e30
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class HeldOut:
    """Samples to evaluate on, by index into a bank, and whose share of them each is (-1: nobody's).

    `whole`: they are all of the bank's, in order.
    """

    images: Tensor
    labels: Tensor
    index: Tensor
    owner: Tensor
    clients: int
    whole: bool = False


def expected(classes: int, clients: int) -> Expected:
    """What the answer to an evaluation holds."""
    return Expected(
        {
            "confusion": ((classes, classes), torch.int64),
            "prototype_correct": ((), torch.int64),
            "loss": ((), torch.float64),
            "auc": ((classes,), torch.float64),
            "auc_defined": ((classes,), torch.bool),
            "client_correct": ((clients,), torch.int64),
            "client_samples": ((clients,), torch.int64),
        },
        frozenset({"samples"}),
    )


def evaluate(
    forward: Forward,
    held_out: HeldOut,
    normalisation: Normalisation,
    dtype: torch.dtype,
    classes: int,
    prototypes: Tensor,
    known: Tensor,
) -> Payload:
    """What `evaluate_all` finds of one model."""

    def alone(images: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = forward(images)
        return z.unsqueeze(0), logits.unsqueeze(0)

    return evaluate_all(alone, [held_out], normalisation, dtype, classes, prototypes[None], known[None])[0]


@torch.no_grad()
def evaluate_all(
    forward: Forward,
    held_outs: Sequence[HeldOut],
    normalisation: Normalisation,
    dtype: torch.dtype,
    classes: int,
    prototypes: Tensor,
    known: Tensor,
) -> list[Payload]:
    """Of each of R models: confusion (true, predicted), mean cross-entropy, area under the ROC curve of each class
    against the rest, correct answers of each client's share and of the nearest prototype.

    `forward` gives z (R, B, Q) and logits (R, B, K) of images (B, C, H, W); all are asked about the same samples, each
    dealt out to clients in its own way. A loss that is not finite is handed on as a very large one: a diverged model is
    bad, not unknown.
    """
    first = held_outs[0]
    close, scores = [], []
    most = CHUNK if first.images.device.type == "cpu" else GPU_CHUNK
    chunk = max(CHUNK, most // len(held_outs))
    truth = first.labels.index_select(0, first.index)
    for start in range(0, len(first.index), chunk):
        part = slice(start, start + chunk)
        images = first.images.index_select(0, first.index[part])
        z, logits = forward(normalisation.apply(images, dtype))
        scores.append(logits.to(torch.float64))
        close.append(nearest(z, prototypes, known) == truth[part])
    found = zip(torch.cat(scores, dim=1), torch.cat(close, dim=1), held_outs, strict=True)
    return [_scored(logits, right, truth, held_out, classes) for logits, right, held_out in found]


def _scored(logits: Tensor, close: Tensor, truth: Tensor, held_out: HeldOut, classes: int) -> Payload:
    """The answer for one model's logits (N, K) in float64, and whether the nearest prototype was right (N,)."""
    loss = F.cross_entropy(logits, truth)
    probabilities = torch.nan_to_num(logits.softmax(dim=-1))
    predicted = probabilities.argmax(dim=-1)
    confusion = torch.bincount(truth * classes + predicted, minlength=classes * classes).view(classes, classes)
    owned = held_out.owner >= 0
    owners, right = held_out.owner[owned], (predicted == truth)[owned]
    auc, defined = areas(probabilities, truth)
    return Payload(
        {
            "confusion": confusion,
            "prototype_correct": close.sum(),
            "loss": torch.nan_to_num(loss, nan=WORST, posinf=WORST),
            "auc": auc,
            "auc_defined": defined,
            "client_correct": torch.bincount(owners[right], minlength=held_out.clients),
            "client_samples": torch.bincount(owners, minlength=held_out.clients),
        },
        {"samples": len(truth)},
    )


def areas(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Area under the ROC curve (K,) of each class against the rest, by ranks with ties shared, and where it exists."""
    columns = scores.T.contiguous()
    ordered = columns.sort(dim=-1).values
    below = torch.searchsorted(ordered, columns)
    up_to = torch.searchsorted(ordered, columns, right=True)
    ranks = (below + up_to + 1).to(torch.float64) / 2
    members = labels == torch.arange(len(columns), device=labels.device).unsqueeze(-1)
    inside = members.sum(dim=-1).to(torch.float64)
    outside = len(labels) - inside
    defined = (inside > 0) & (outside > 0)
    above = (ranks * members).sum(dim=-1) - inside * (inside + 1) / 2
    return torch.where(defined, above / (inside * outside).clamp(min=1), torch.zeros_like(above)), defined


def measures(payload: Payload) -> dict[str, Any]:
    """The numbers of a metrics line, from an evaluation's answer. Means over classes are over those with samples."""
    tensors, samples = payload.tensors, payload.counts["samples"]
    confusion = tensors["confusion"].to(torch.float64).cpu()
    right, true, said = confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)
    recall = right / true.clamp(min=1)
    f1 = 2 * right / (true + said).clamp(min=1)
    there = true > 0
    found: dict[str, Any] = {
        "accuracy": int(right.sum()) / samples,
        "prototype_accuracy": int(tensors["prototype_correct"]) / samples,
        "loss": float(tensors["loss"]),
        "balanced_accuracy": float(recall[there].mean()),
        "macro_f1": float(f1[there].mean()),
    }
    if bool(tensors["auc_defined"].any()):
        found["auc"] = float(tensors["auc"][tensors["auc_defined"]].mean())
    shares = zip(tensors["client_correct"].tolist(), tensors["client_samples"].tolist(), strict=True)
    by_client = [correct / count if count else None for correct, count in shares]
    held = [accuracy for accuracy in by_client if accuracy is not None]
    if held:
        found |= {"client_accuracy_mean": sum(held) / len(held), "client_accuracy_worst": min(held)}
    found["client_accuracies"] = by_client
    found["class_accuracy"] = [float(r) if t else None for r, t in zip(recall, there, strict=True)]
    found["confusion"] = tensors["confusion"].tolist()
    return found


def mean_measures(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over several models: numbers one by one, classes one by one, confusions added."""
    found: dict[str, Any] = {}
    for name, first in each[0].items():
        values = [measured[name] for measured in each if name in measured]
        if name == "confusion":
            found[name] = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*values, strict=True)]
        elif isinstance(first, list):
            found[name] = [
                None if column[0] is None else sum(column) / len(column) for column in zip(*values, strict=True)
            ]
        else:
            found[name] = sum(values) / len(values)
    return found
