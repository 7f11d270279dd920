"""The paper's numbers: top-1 accuracy in per cent (with the deviation where it is given), seconds per round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    value: float
    deviation: float | None = None


Rows = dict[str, dict[str, Published]]


def _rows(columns: tuple[str, ...], numbers: dict[str, tuple[float | tuple[float, float], ...]]) -> Rows:
    def one(number: float | tuple[float, float]) -> Published:
        return Published(*number) if isinstance(number, tuple) else Published(number)

    return {row: dict(zip(columns, map(one, values), strict=True)) for row, values in numbers.items()}


DATA = ("cifar10", "cifar100", "tiny-imagenet")

ACCURACY = _rows(
    DATA,
    {
        "solo": ((46.3, 5.1), (22.3, 1.0), (8.9, 0.3)),
        "fedavg": ((66.3, 0.5), (64.5, 0.4), (26.2, 0.1)),
        "scaffold": ((66.6, 0.2), (52.5, 0.3), (17.9, 0.2)),
        "fedprox": ((66.9, 0.2), (64.6, 0.2), (27.4, 0.2)),
        "moon": ((69.1, 0.4), (67.5, 0.4), (27.5, 0.1)),
        "fedproc": ((70.7, 0.3), (74.6, 0.1), (35.4, 0.1)),
    },
)

BETA = _rows(
    ("5", "0.5", "0.1"),
    {
        "solo": (26.6, 22.3, 15.9),
        "fedavg": (65.7, 64.5, 62.5),
        "scaffold": (55.0, 52.5, 47.3),
        "fedprox": (64.9, 64.6, 62.9),
        "moon": (68.0, 67.5, 64.0),
        "fedproc": (75.6, 74.6, 68.9),
    },
)

ALPHA = _rows(
    DATA,
    {
        "two-stage": (65.1, 67.5, 24.7),
        "alpha = 0.5": (66.3, 68.9, 30.2),
        "fedproc": (70.7, 74.6, 35.4),
    },
)

TIME = _rows(
    DATA,
    {
        "fedavg": (514.0, 1476.0, 6251.0),
        "scaffold": (523.0, 1675.0, 10916.0),
        "fedprox": (532.0, 1648.0, 7027.0),
        "moon": (546.0, 2705.0, 11170.0),
        "fedproc": (717.0, 1661.0, 6672.0),
    },
)

CLIENTS = _rows(
    ("50/100", "50/200", "100/250", "100/500"),
    {
        "fedavg": (51.9, 56.4, 51.0, 55.0),
        "scaffold": (35.8, 44.9, 37.4, 44.5),
        "fedprox": (52.7, 56.6, 51.3, 54.6),
        "moon": (58.2, 63.2, 56.9, 61.8),
        "fedproc": (63.6, 72.5, 68.9, 70.6),
    },
)
