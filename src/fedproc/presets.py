"""Named sets of defaults, which an experiment's own values override."""

from __future__ import annotations

from typing import Any

Given = dict[str, Any]

AUTHOR_CODE: Given = {"horizon": 100, "first_round": "cross-entropy", "weighting": "count", "pass_mode": "training"}
SHARP: Given = {"tau": 0.2, "combine": "add"}

PRESETS: dict[str, tuple[str, Given]] = {
    "paper": ("the algorithm as the paper writes it", {}),
    "tuned": (
        "what did best in our search: calibrated logits and a cosine learning rate for every method; for FedProc "
        "tau 0.2, and the prototype loss added",
        {"calibrate": 1.0, "lr_schedule": "cosine", "fedproc": SHARP, "scaffold+fedproc": SHARP},
    ),
    "author_code": (
        "the choices of the authors' released code where they differ from the paper",
        {
            "normalize_z": True,
            "fedproc": AUTHOR_CODE,
            "scaffold+fedproc": AUTHOR_CODE,
            "two-stage": {"weighting": "count", "pass_mode": "training"},
        },
    ),
}
# who trains on one distribution from the first to the last round has no drift between clients to correct
FOR_CLIENTS_THAT_MERGE = frozenset({"calibrate"})


def usual(own_images: bool) -> str:
    """The preset where none is named: the paper's, for the paper's data sets."""
    return "tuned" if own_images else "paper"


def of_method(preset: str, federated: bool) -> Given:
    """A preset's values for a method that merges models, or for one that does not."""
    _, values = PRESETS[preset]
    return {name: value for name, value in values.items() if federated or name not in FOR_CLIENTS_THAT_MERGE}
