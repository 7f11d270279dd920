"""Figures of several panels, one a data set: accuracy by round or by local epochs, a line a method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from fedproc.report.curves import Runs, draw_line, dress
from fedproc.report.style import Picture, legend, lines, picture, plain
from fedproc.report.tables import Number


def draw_rounds(panels: Mapping[str, Mapping[str, Runs]]) -> Picture:
    """Mean and interval over seeds of the classifier's accuracy after each round."""
    made, axes = _panels(panels, "round")
    shades = lines(dict.fromkeys(label for rows in panels.values() for label in rows))
    for panel, rows in zip(axes, panels.values(), strict=True):
        for label, runs in rows.items():
            draw_line(made, panel, label, runs, "test_accuracy", shades[label])
    return _finished(made, axes)


def draw_epochs(panels: Mapping[str, Mapping[str, Mapping[int, Number]]]) -> Picture:
    """Mean and deviation over seeds of the final accuracy for each number of local epochs."""
    made, axes = _panels(panels, "local epochs E")
    shades = lines(dict.fromkeys(label for rows in panels.values() for label in rows))
    for panel, rows in zip(axes, panels.values(), strict=True):
        for label, points in rows.items():
            known = {epochs: number for epochs, number in points.items() if number.mean is not None}
            x, y = list(known), [number.mean or 0.0 for number in known.values()]
            bars = [number.deviation or 0.0 for number in known.values()]
            panel.errorbar(
                x, y, bars, label=plain(label), color=shades[label].colour, linestyle=shades[label].dashes,
                marker="o", markersize=4, linewidth=1.8, capsize=3,
            )  # fmt: skip
            texts = [f"{label}, E = {epochs}: {number.ours} %" for epochs, number in known.items()]
            if known:
                made.points(panel, x, y, shades[label].colour, texts)
        panel.set_xticks(sorted({epochs for points in rows.values() for epochs in points}))
    return _finished(made, axes)


def _panels(panels: Mapping[str, Any], below: str) -> tuple[Picture, list[Axes]]:
    made = picture(max(5.5, 4.4 * len(panels)), 4.2)
    axes = list(made.figure.subplots(1, len(panels), squeeze=False)[0])
    for panel, title in zip(axes, panels, strict=True):
        dress(panel, title, below)
    return made, axes


def _finished(made: Picture, axes: list[Axes]) -> Picture:
    axes[0].set_ylabel("test accuracy, %")
    legend(made.figure, axes)
    return made
