"""The number that methods with models of each client's own are judged by, of a run that has one global model: what that
model is by the same rule, so that they have something to be compared with.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from fedproc.protocol.evaluation import own_accuracy
from fedproc.runs.saved import read_environment
from fedproc.runs.schema import PartitionFile, read, read_json

Record = dict[str, Any]
FINAL = "final_own_accuracy"


class Kept(Protocol):
    """A run, and its folder if it has one."""

    @property
    def metrics(self) -> list[Record]: ...

    @property
    def path(self) -> Path | None: ...


def of_global_model(run: Kept) -> float | None:
    """The mean over clients of the final model's accuracy to be expected on images with the classes of their own data:
    of its accuracy on each class, and of who held what. None where it cannot be told, or would be the mean over other
    clients than those whose own models are evaluated: where some alone take part in a round or were refused, where
    clients evaluate on images of their own, and of data at one place.
    """
    last = next((record for record in reversed(run.metrics) if _by_class(record) is not None), None)
    if run.path is None or last is None or last.get("refused"):
        return None
    config, held = read_json(run.path / "config.json") or {}, read(run.path / "partition.json", PartitionFile)
    if held is None or len(held.counts) < 2 or config.get("sample") != 1:
        return None
    if read_environment(run.path).get("executor") == "federation":
        return None
    return _mean(_by_class(last) or [], held.counts, int(config.get("smallest_class", 1)))


def _by_class(record: Mapping[str, Any]) -> Sequence[float | None] | None:
    found: Sequence[float | None] | None = record.get("class_accuracy", record.get("val_class_accuracy"))
    return found


def _mean(by_class: Sequence[float | None], counts: Sequence[Sequence[int]], smallest: int) -> float | None:
    """Over clients that have images, of which those with too few of a class tell none of it."""
    told = [torch.tensor([n if n >= smallest else 0 for n in row]) for row in counts if sum(row)]
    if not told or any(len(row) != len(by_class) for row in told):
        return None
    return statistics.fmean(own_accuracy(by_class, row) for row in told)
