"""One look for all pictures: matplotlib without a display, colours that colour-blind readers tell apart."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def figure(width: float, height: float) -> Figure:
    made = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(made: Figure, path: Path, kind: str = "png") -> None:
    """As PNG or SVG, whatever the file's name ends in (it may be a temporary one), with no date in it."""
    made.savefig(path, format=kind, metadata={"Software": None} if kind == "png" else {"Date": None})
