"""Evaluation of one model on held-out images: the classifier's accuracy and loss, the nearest prototype's accuracy."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproc.data.augment import Normalisation
from fedproc.payload import Expected, Payload
from fedproc.prototypes import nearest

CHUNK = 256
EXPECTED = Expected(
    {
        "correct": ((), torch.int64),
        "prototype_correct": ((), torch.int64),
        "loss": ((), torch.float64),
    },
    frozenset({"samples"}),
)

Forward = Callable[[Tensor], tuple[Tensor, Tensor]]


@torch.no_grad()
def evaluate(
    forward: Forward,
    images: Tensor,
    labels: Tensor,
    index: Tensor,
    normalisation: Normalisation,
    dtype: torch.dtype,
    prototypes: Tensor,
    known: Tensor,
) -> Payload:
    """Correct predictions of classifier and nearest prototype, and the mean cross-entropy, over `index`.

    A loss that is not finite is handed on as the largest number: a diverged model is bad, not unknown.
    """
    correct = torch.zeros((), dtype=torch.int64, device=images.device)
    close = torch.zeros_like(correct)
    loss = torch.zeros((), dtype=torch.float64, device=images.device)
    for start in range(0, len(index), CHUNK):
        part = index[start : start + CHUNK]
        answers = labels.index_select(0, part)
        z, logits = forward(normalisation.apply(images.index_select(0, part), dtype))
        correct += (logits.argmax(dim=-1) == answers).sum()
        close += (nearest(z, prototypes, known) == answers).sum()
        loss += F.cross_entropy(logits.to(torch.float64), answers, reduction="sum")
    mean_loss = torch.nan_to_num(loss / len(index), nan=torch.finfo(torch.float64).max)
    return Payload({"correct": correct, "prototype_correct": close, "loss": mean_loss}, {"samples": len(index)})
