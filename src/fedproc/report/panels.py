"""Figures with one panel per data set: accuracy by round or by local epochs, one line per method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from fedproc.figures.curves import BAND, ENOUGH, Runs, draw_line, dress
from fedproc.figures.style import Picture, legend, lines, picture, plain
from fedproc.report.tables import Number
from fedproc.statistics import half_interval


def draw_rounds(panels: Mapping[str, Mapping[str, Runs]]) -> Picture:
    """Mean and interval over seeds of the classifier's accuracy after each round."""
    made, axes = _panels(panels, "round")
    shades = lines(dict.fromkeys(label for rows in panels.values() for label in rows))
    for panel, rows in zip(axes, panels.values(), strict=True):
        for label, runs in rows.items():
            draw_line(made, panel, label, runs, "test_accuracy", shades[label])
    if any(len(runs) > 1 for rows in panels.values() for runs in rows.values()):
        made.explain(f"bands: {BAND}")
    return _finished(made, axes)


def draw_epochs(panels: Mapping[str, Mapping[str, Mapping[int, Number]]]) -> Picture:
    """Mean and interval over seeds of the final accuracy for each number of local epochs, bars side by side."""
    made, axes = _panels(panels, "local epochs E")
    shades = lines(dict.fromkeys(label for rows in panels.values() for label in rows))
    for panel, rows in zip(axes, panels.values(), strict=True):
        all_epochs = sorted({epochs for points in rows.values() for epochs in points})
        gap = 0.012 * (all_epochs[-1] - all_epochs[0] or 1)
        for place, (label, points) in enumerate(rows.items()):
            known = {epochs: number for epochs, number in points.items() if number.mean is not None}
            x = [epochs + gap * (place - (len(rows) - 1) / 2) for epochs in known]
            y = [number.mean or 0.0 for number in known.values()]
            halves = [half_width(number) for number in known.values()]
            bars = [[min(half, at) for half, at in zip(halves, y, strict=True)],
                    [min(half, 100 - at) for half, at in zip(halves, y, strict=True)]]  # fmt: skip
            panel.errorbar(
                x, y, bars, label=plain(label), color=shades[label].colour, linestyle=shades[label].dashes,
                marker="o", markersize=4, linewidth=1.8, capsize=3,
            )  # fmt: skip
            texts = [f"{label}, E = {epochs}: {number.text(1)} %" for epochs, number in known.items()]
            if known:
                made.points(panel, x, y, shades[label].colour, texts)
        panel.set_xticks(all_epochs)
    if any(number.seeds > 1 for rows in panels.values() for points in rows.values() for number in points.values()):
        made.explain(f"bars: {BAND}")
    return _finished(made, axes)


def half_width(number: Number) -> float:
    """Of the interval of the mean, or of the range of two."""
    if number.deviation is None:
        return 0.0
    if number.seeds < ENOUGH:
        return number.deviation / math.sqrt(number.seeds)
    return float(half_interval(number.deviation, number.seeds))


def _panels(panels: Mapping[str, Any], below: str) -> tuple[Picture, list[Axes]]:
    made = picture(max(5.5, 4.4 * len(panels)) + 1.3, 4.2)
    axes = list(made.figure.subplots(1, len(panels), squeeze=False)[0])
    for panel, title in zip(axes, panels, strict=True):
        dress(panel, title, below)
    return made, axes


def _finished(made: Picture, axes: list[Axes]) -> Picture:
    axes[0].set_ylabel("test accuracy, %")
    legend(made.figure, axes)
    return made
