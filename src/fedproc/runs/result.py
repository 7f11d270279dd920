"""The headline numbers of a run, read off its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedproc.runs.schema import EndedResult, FinishedResult, Schema, ValidatedResult, checked

Record = dict[str, Any]
LAST = 10
COUNTED = ("answers", "clients")
MOST_REASONS = 3


def seconds_of(record: Record) -> float:
    return float(sum(record["seconds"].values()))


def summarise(records: Sequence[Record], held_out: str, target: float | None = None, own_rounds: int = 0) -> Record:
    """Final round first; best, and the mean of the evaluated rounds among the last 10, are labelled as such. The last
    `own_rounds` train clients' own models alone: the global one that they evaluate counts once.

    With a validation split the names begin with val_, and nothing is said of the test set.
    """
    prefix = "" if held_out == "test" else "val_"
    key = f"{held_out}_accuracy"
    nearest = "prototype_accuracy" if held_out == "test" else "val_prototype_accuracy"
    evaluated = [record for record in records if key in record]
    last = _last(evaluated, records[-1]["round"] - own_rounds)
    best = max(evaluated, key=lambda record: record[key])
    seconds = sum(seconds_of(record) for record in records)
    averaged = f"{prefix}averaged_accuracy"
    extra = {f"{prefix}final_averaged_accuracy": evaluated[-1][averaged]} if averaged in evaluated[-1] else {}
    for name, measured in evaluated[-1].get(f"{prefix}final_models", {}).items():
        extra[f"{prefix}final_{name}_accuracy"] = measured["accuracy"]
    if f"{prefix}own_accuracy" in evaluated[-1]:
        extra[f"{prefix}final_own_accuracy"] = evaluated[-1][f"{prefix}own_accuracy"]
    deviation = f"{key}_deviation"
    if deviation in evaluated[-1]:
        extra[f"{prefix}final_accuracy_deviation"] = evaluated[-1][deviation]
    if kept := records[-1].get("kept"):
        extra["kept_round"] = kept["round"]
        names = ("test_accuracy", "prototype_accuracy", "balanced_accuracy", "macro_f1")
        extra |= {name if name.startswith("test_") else f"test_{name}": kept[name] for name in names}
    if target is not None:
        extra |= _to_target(records, key, target)
    return {
        "status": "finished",
        "rounds": records[-1]["round"],
        f"{prefix}final_accuracy": evaluated[-1][key],
        f"{prefix}best_accuracy": best[key],
        f"{prefix}best_round": best["round"],
        f"{prefix}last10_accuracy": sum(record[key] for record in last) / len(last),
        f"{prefix}final_prototype_accuracy": evaluated[-1][nearest],
        f"{prefix}last10_prototype_accuracy": sum(record[nearest] for record in last) / len(last),
        **extra,
        **refusals(records),
        **{name: sum(_crossed(record, name) for record in records) for name in ("bytes_up", "bytes_down")},
        "seconds": seconds,
        "samples_per_second": sum(record["samples"] for record in records) / seconds if seconds else 0.0,
    }


def _last(evaluated: Sequence[Record], federated: int) -> list[Record]:
    """The evaluated rounds among the last 10 of so many that trained the global model. Where the last of these was not
    evaluated, the first after it stands for it.
    """
    end = next((record["round"] for record in evaluated if record["round"] >= federated), evaluated[-1]["round"])
    return [record for record in evaluated if federated - LAST < record["round"] <= end]


def promise_kept(result: Record) -> str:
    """Epsilon of a private run, for a person; empty of others."""
    found = result.get("privacy")
    if not found:
        return ""
    spent = found["epsilon"]
    return f", epsilon {'infinite' if spent is None else f'{spent:.2f}'} at delta {found['delta']:g}"


def refusals(records: Sequence[Record]) -> Record:
    """How many answers of how many clients were refused, and the most frequent reasons; nothing where none was."""
    found = [each for record in records for each in _refused(record)]
    if not found:
        return {}
    reasons = dict(Counter(reason for _, reason in found).most_common(MOST_REASONS))
    return {"refused": {"answers": len(found), "clients": len({client for client, _ in found}), "reasons": reasons}}


def refusals_in_words(records: Sequence[Record]) -> str:
    """What `refusals` found, for a person; empty where none was."""
    found = refusals(records).get("refused")
    if found is None:
        return ""
    reasons = "; ".join(f"{reason} ({count})" for reason, count in found["reasons"].items())
    answers, clients = (f"{found[name]} {name.removesuffix('s') if found[name] == 1 else name}" for name in COUNTED)
    return f"{answers} of {clients} refused: {reasons}"


def _refused(record: Record) -> Iterator[tuple[str, str]]:
    for where in (record, record.get("closing")):
        found = where.get("refused") if isinstance(where, dict) else None
        yield from ((str(client), str(reason)) for client, reason in (found or {}).items())


def complaint(path: Path, result: Record, records: Sequence[Record]) -> str | None:
    """What a result.json lacks to be the end of these records, if anything."""
    if result["status"] != "finished":
        checked(path, result, EndedResult)
        return None
    kind: type[Schema] = ValidatedResult if "val_final_accuracy" in result else FinishedResult
    checked(path, result, kind)
    last = records[-1]["round"] if records else 0
    return None if last == result["rounds"] else f"metrics.jsonl beside it ends with round {last} of {result['rounds']}"


def _crossed(record: Record, name: str) -> int:
    return int(record[name]) + int(record.get("closing", {}).get(name, 0))


def evaluated(record: Record) -> bool:
    """Whether the round was evaluated."""
    return "test_accuracy" in record or "val_accuracy" in record


def as_one_of_many(record: Record, unevaluated: bool) -> Record:
    """The record of a last round as it is when more follow: without what comes after the last, and without its
    evaluation where that was not its turn.
    """
    names: tuple[str, ...] = ("closing", "final_models", "val_final_models", "kept")
    prefixes: tuple[str, ...] = ()
    if unevaluated:
        names += ("balanced_accuracy", "macro_f1", "auc", "class_accuracy", "prototype_accuracy", "own_accuracy")
        names += ("own_models",)
        prefixes = ("test_", "val_", "averaged_", "client_accuracy")
    return {name: value for name, value in record.items() if name not in names and not name.startswith(prefixes)}


def _to_target(records: Sequence[Record], key: str, target: float) -> Record:
    """Rounds and bytes until the target accuracy was first seen; None if it never was."""
    spent = 0
    for record in records:
        spent += record["bytes_up"] + record["bytes_down"]
        if record.get(key, -1.0) >= target:
            return {"target_accuracy": target, "rounds_to_target": record["round"], "bytes_to_target": spent}
    return {"target_accuracy": target, "rounds_to_target": None, "bytes_to_target": None}
