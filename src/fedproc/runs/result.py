"""The headline numbers of a run, read off its records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Record = dict[str, Any]
LAST = 10


def seconds_of(record: Record) -> float:
    return float(sum(record["seconds"].values()))


def summarise(records: Sequence[Record], held_out: str) -> Record:
    """Final round first; best, and the mean of the evaluated rounds among the last 10, are labelled as such.

    With a validation split the names begin with val_, and nothing is said of the test set.
    """
    prefix = "" if held_out == "test" else "val_"
    key = f"{held_out}_accuracy"
    nearest = "prototype_accuracy" if held_out == "test" else "val_prototype_accuracy"
    evaluated = [record for record in records if key in record]
    last = [record[key] for record in evaluated if record["round"] > records[-1]["round"] - LAST]
    best = max(evaluated, key=lambda record: record[key])
    seconds = sum(seconds_of(record) for record in records)
    return {
        "status": "finished",
        "rounds": records[-1]["round"],
        f"{prefix}final_accuracy": evaluated[-1][key],
        f"{prefix}best_accuracy": best[key],
        f"{prefix}best_round": best["round"],
        f"{prefix}last10_accuracy": sum(last) / len(last),
        f"{prefix}final_prototype_accuracy": evaluated[-1][nearest],
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "seconds": seconds,
        "samples_per_second": sum(record["samples"] for record in records) / seconds,
    }
