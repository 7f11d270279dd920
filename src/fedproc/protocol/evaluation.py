"""What the answer to an evaluation holds, and the numbers that are read off it.

Shapes: K classes, m clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedproc.protocol.guard import Expected, Refused
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
            "client_correct": ((clients, classes), torch.int64),
            "client_samples": ((clients, classes), torch.int64),
        },
        {"samples": None},
    )


def expected_of_client(classes: int) -> Expected:
    """What the answer of a client holds that evaluates on held-out images of its own."""
    whole = expected(classes, 1)
    names = ("confusion", "prototype_correct", "loss")
    return Expected({name: whole.tensors[name] for name in names}, whole.counts)


def expect_consistent(payload: Payload) -> None:
    """Refuse counts that contradict each other."""
    samples, seen = payload.counts["samples"], int(payload.tensors["confusion"].sum())
    if seen != samples:
        raise Refused(f"confusion holds {seen} images, samples says {samples}")
    if int(payload.tensors["prototype_correct"]) > samples:
        raise Refused(f"prototype_correct is {int(payload.tensors['prototype_correct'])} of {samples} images")


def pooled(payloads: Sequence[Payload]) -> Payload:
    """What clients found on their own held-out images, as if one had all of them; the area under the curve cannot be
    told from that.
    """
    samples = sum(payload.counts["samples"] for payload in payloads)
    confusion = sum((p.tensors["confusion"] for p in payloads[1:]), payloads[0].tensors["confusion"])
    classes = len(confusion)
    loss = sum(float(p.tensors["loss"]) * (p.counts["samples"] / samples) for p in payloads)
    return Payload(
        {
            "confusion": confusion,
            "prototype_correct": torch.tensor(sum(int(p.tensors["prototype_correct"]) for p in payloads)),
            "loss": torch.tensor(loss, dtype=torch.float64),
            "auc": torch.zeros(classes, dtype=torch.float64),
            "auc_defined": torch.zeros(classes, dtype=torch.bool),
            "client_correct": torch.stack([p.tensors["confusion"].diagonal() for p in payloads]),
            "client_samples": torch.stack([p.tensors["confusion"].sum(dim=1) for p in payloads]),
        },
        {"samples": samples},
    )


def of_site(correct: Tensor, total: Tensor) -> dict[str, list[int]]:
    """What is on record of a site: correct answers and held-out images of each class."""
    return {"correct": correct.tolist(), "total": total.tolist()}


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
    correct, counts = (tensors[name].sum(dim=1).tolist() for name in ("client_correct", "client_samples"))
    shares = zip(correct, counts, strict=True)
    by_client = [right / count if count else None for right, count in shares]
    held = [accuracy for accuracy in by_client if accuracy is not None]
    if held:
        found |= {"client_accuracy_mean": sum(held) / len(held), "client_accuracy_worst": min(held)}
    found["client_accuracies"] = by_client
    found["class_accuracy"] = [float(r) if t else None for r, t in zip(recall, there, strict=True)]
    found["confusion"] = tensors["confusion"].tolist()
    return found


def own_accuracy(by_class: Sequence[float | None], counts: Tensor) -> float:
    """The accuracy to be expected on images whose classes are distributed as a client's own, of which it has `counts`
    (K,).
    """
    shares = zip(by_class, (counts / counts.sum().clamp(min=1)).tolist(), strict=True)
    return float(sum(share * accuracy for accuracy, share in shares if accuracy is not None))


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
