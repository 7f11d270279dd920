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

CHUNK, GPU_CHUNK = 256, 2048
WORST = 1e30
Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class HeldOut:
    """Samples to evaluate on, by index into a bank, and whose share of them each is (-1: nobody's)."""

    images: Tensor
    labels: Tensor
    index: Tensor
    owner: Tensor
    clients: int


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


@torch.no_grad()
def evaluate(
    forward: Forward,
    held_out: HeldOut,
    normalisation: Normalisation,
    dtype: torch.dtype,
    classes: int,
    prototypes: Tensor,
    known: Tensor,
) -> Payload:
    """Confusion (true, predicted), mean cross-entropy, area under the ROC curve of each class against the rest,
    correct answers of each client's share and of the nearest prototype.

    A loss that is not finite is handed on as a very large one: a diverged model is bad, not unknown.
    """
    answers, scores, close, loss = [], [], [], torch.zeros((), dtype=torch.float64, device=held_out.images.device)
    chunk = CHUNK if held_out.images.device.type == "cpu" else GPU_CHUNK
    for start in range(0, len(held_out.index), chunk):
        part = held_out.index[start : start + chunk]
        labels = held_out.labels.index_select(0, part)
        z, logits = forward(normalisation.apply(held_out.images.index_select(0, part), dtype))
        answers.append(labels)
        scores.append(torch.nan_to_num(logits.to(torch.float64).softmax(dim=-1)))
        close.append(nearest(z, prototypes, known) == labels)
        loss += F.cross_entropy(logits.to(torch.float64), labels, reduction="sum")
    truth, probabilities = torch.cat(answers), torch.cat(scores)
    predicted = probabilities.argmax(dim=-1)
    confusion = torch.bincount(truth * classes + predicted, minlength=classes * classes).view(classes, classes)
    owned = held_out.owner >= 0
    owners, right = held_out.owner[owned], (predicted == truth)[owned]
    auc, defined = areas(probabilities, truth)
    return Payload(
        {
            "confusion": confusion,
            "prototype_correct": torch.cat(close).sum(),
            "loss": torch.nan_to_num(loss / len(truth), nan=WORST, posinf=WORST),
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
