"""Variants that a search chose: on seeds that it used they are flattered, and are refused there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedproc.errors import InputError
from fedproc.experiment import Experiment

SEARCHED = "search_seeds"  # of a variant: the seeds of the runs that its options were chosen by


def searched_seeds(label: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Which seeds chose a variant's options; none of one that says nothing of it."""
    found = values.get(SEARCHED, [])
    whole = isinstance(found, list) and all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found)
    if not whole:
        raise InputError(f"variant {label}: {SEARCHED} {found}: expected a list of whole numbers such as [100, 101]")
    return tuple(found)


def expect_unsearched(label: str, searched: Collection[int], experiments: Collection[Experiment]) -> None:
    """Refuse seeds whose clients, and validation images of theirs, have chosen the options that are to be tested."""
    used = sorted({e.data_seed for e in experiments} & set(searched))
    if used:
        raise InputError(
            f"--seeds {' '.join(map(str, used))}: {label} won a search with these seeds, which chose its options; "
            f"take seeds that the search has not used, or remove {SEARCHED} from the variant if that is meant"
        )
