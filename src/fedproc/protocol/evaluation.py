"""What the answer to an evaluation holds, and the numbers that are read off it.

Shapes: K classes, m clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fedproc.protocol.guard import Expected
from fedproc.protocol.payload import Payload


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
        {"samples": None},
    )


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
    for name in dict.fromkeys(name for measured in each for name in measured):
        values = [measured[name] for measured in each if name in measured]
        first = values[0]
        if name == "confusion":
            found[name] = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*values, strict=True)]
        elif isinstance(first, list):
            found[name] = [
                None if column[0] is None else sum(column) / len(column) for column in zip(*values, strict=True)
            ]
        else:
            found[name] = sum(values) / len(values)
    return found
