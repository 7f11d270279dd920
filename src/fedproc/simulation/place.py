"""Where a process trains its runs, and beside whom."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fedproc.lanes import Share, cores


@dataclass(frozen=True)
class Place:
    """A process among `workers`: its share of the machine, the device it is pinned to (None: the experiments' own), how
    many runs are trained at once by all of them together (None: by this one alone), and what all of them were started
    by. A checkpoint that is `save_after` seconds old is followed by another after the next round.
    """

    share: Share
    device: str | None = None
    worker: int = 0
    workers: int = 1
    runs_at_once: int | None = None
    mps: bool = False
    command: tuple[str, ...] | None = None
    save_after: float = float("inf")

    def message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, message: dict[str, Any]) -> Place:
        command = message["command"]
        given = {**message, "share": Share(**message["share"]), "command": None if command is None else tuple(command)}
        return cls(**given)


def alone() -> Place:
    """The one process there is, with all of the machine."""
    return Place(Share(cores()))
