"""Flags that several commands share and that need nothing of what runs need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedproc.errors import InputError


def whole_numbers(name: str, words: Sequence[str]) -> list[int]:
    """The values given after a flag of that name."""
    try:
        return [int(word) for word in words]
    except ValueError:
        raise InputError(f"{name} {' '.join(words)}: expected whole numbers") from None


def add_workers(parser: Any) -> None:
    """How many processes share the work."""
    words = (
        "processes that share the runs: a number, or auto for as many as pay (on one GPU under a private MPS daemon)"
    )
    parser.add_argument("--workers", metavar="N", default="auto", help=f"{words}; default: auto")
    where = "workers are jobs of a cluster that is there: ray, ray:HOST:PORT, slurm, or slurm:PARTITION"
    parser.add_argument("--cluster", metavar="KIND", help=where)
    parser.add_argument(
        "--shared-lock", action="store_true", help="with --cluster: locks hold on the network file system of --out"
    )
