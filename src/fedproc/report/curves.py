"""Learning curves: accuracy by round of classifier and nearest prototype, mean and range over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedproc.report.style import colour, figure, save

Runs = Sequence[Sequence[Mapping[str, Any]]]
PANELS = (
    ("Classifier", ("test_accuracy", "val_accuracy")),
    ("Nearest prototype", ("prototype_accuracy", "val_prototype_accuracy")),
)


def draw_curves(rows: Mapping[str, Runs], path: Path) -> None:
    """One panel a kind of accuracy, one line a row; `rows` holds the records of each row's runs."""
    made = figure(10, 4.2)
    axes = made.subplots(1, len(PANELS), sharey=True)
    for panel, (title, names) in zip(axes, PANELS, strict=True):
        for place, (label, runs) in enumerate(rows.items()):
            for name in names:
                draw_line(panel, label, runs, name, colour(place))
        panel.set_title(title, fontsize=11)
        panel.set_xlabel("round")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    held_out = (
        "validation" if any("val_accuracy" in r for runs in rows.values() for run in runs for r in run) else "test"
    )
    axes[0].set_ylabel(f"{held_out} accuracy, %")
    if axes[0].get_legend_handles_labels()[1]:
        axes[0].legend(frameon=False, loc="lower right")
    save(made, path)


def draw_line(panel: Axes, label: str, runs: Runs, name: str, shade: str) -> None:
    """The mean over runs of a number by round, and its range."""
    curves = [{r["round"]: 100 * r[name] for r in run if name in r} for run in runs]
    rounds = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not rounds:
        return
    values = np.array([[curve[t] for t in rounds] for curve in curves])
    marker = "o" if len(rounds) < 3 else None
    panel.plot(rounds, values.mean(axis=0), color=shade, label=label, linewidth=1.8, marker=marker, markersize=4)
    if len(curves) > 1:
        panel.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=shade, alpha=0.15, linewidth=0)
