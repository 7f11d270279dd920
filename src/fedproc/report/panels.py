"""Figures of several panels, one a data set: accuracy by round or by local epochs, a line a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedproc.report.curves import Runs, draw_line
from fedproc.report.style import colour, figure, save
from fedproc.report.tables import Number


def draw_rounds(panels: Mapping[str, Mapping[str, Runs]], path: Path, kind: str = "png") -> None:
    """Mean and range over seeds of the classifier's accuracy after each round."""
    for panel, rows in _panels(panels, path, kind, "round"):
        for place, (label, runs) in enumerate(rows.items()):
            draw_line(panel, label, runs, "test_accuracy", colour(place))


def draw_epochs(panels: Mapping[str, Mapping[str, Mapping[int, Number]]], path: Path, kind: str = "png") -> None:
    """Mean and deviation over seeds of the final accuracy for each number of local epochs."""
    for panel, rows in _panels(panels, path, kind, "local epochs E"):
        for place, (label, points) in enumerate(rows.items()):
            known = {epochs: number for epochs, number in points.items() if number.mean is not None}
            bars = [number.deviation or 0.0 for number in known.values()]
            panel.errorbar(
                list(known), [number.mean or 0.0 for number in known.values()], bars, label=label, color=colour(place),
                marker="o", markersize=4, linewidth=1.8, capsize=3,
            )  # fmt: skip


def _panels(
    panels: Mapping[str, Mapping[str, Any]], path: Path, kind: str, below: str
) -> Iterator[tuple[Axes, Mapping[str, Any]]]:
    """The axes one by one, with their rows; the figure is finished and saved after the last."""
    made = figure(max(5.5, 4.4 * len(panels)), 4.2)
    axes = made.subplots(1, len(panels), squeeze=False)[0]
    for panel, (title, rows) in zip(axes, panels.items(), strict=True):
        panel.set_title(title, fontsize=11)
        panel.set_xlabel(below)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        yield panel, rows
    axes[0].set_ylabel("test accuracy, %")
    if axes[0].get_legend_handles_labels()[1]:
        axes[0].legend(frameon=False, fontsize=8)
    save(made, path, kind)
