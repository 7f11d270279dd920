"""Evaluation of models on held-out images.

Shapes: N samples, K classes, m clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc.data.augment import Normalisation
from fedproc.protocol.payload import Payload
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
    cells, right = (held_out.owner * classes + truth)[owned], (predicted == truth)[owned]
    by_client = (held_out.clients, classes)
    auc, defined = areas(probabilities, truth)
    return Payload(
        {
            "confusion": confusion,
            "prototype_correct": close.sum(),
            "loss": torch.nan_to_num(loss, nan=WORST, posinf=WORST),
            "auc": auc,
            "auc_defined": defined,
            "client_correct": torch.bincount(cells[right], minlength=held_out.clients * classes).view(by_client),
            "client_samples": torch.bincount(cells, minlength=held_out.clients * classes).view(by_client),
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
