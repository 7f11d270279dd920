"""Learning curves: accuracy by round of classifier and nearest prototype, mean over seeds with an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedproc.figures.style import Line, Picture, legend, lines, picture, plain
from fedproc.statistics import half_interval

Runs = Sequence[Sequence[Mapping[str, Any]]]
PANELS = (
    ("Classifier", ("test_accuracy", "val_accuracy")),
    ("Nearest prototype", ("prototype_accuracy", "val_prototype_accuracy")),
)
ENOUGH = 3  # seeds for the band to be an interval of the mean
BAND = f"95 % interval of the mean over {ENOUGH} or more seeds, range of two"


def draw_curves(rows: Mapping[str, Runs]) -> Picture:
    """One panel per kind of accuracy, one line per row; `rows` holds the records of each row's runs."""
    shades = lines(rows)
    made = picture(11.5, max(4.2, 0.4 + 0.18 * len(rows)))  # the legend is a column
    axes = made.figure.subplots(1, len(PANELS), sharey=True)
    for panel, (title, names) in zip(axes, PANELS, strict=True):
        for label, runs in rows.items():
            for name in names:
                draw_line(made, panel, label, runs, name, shades[label])
        dress(panel, title, "round")
        _one_round(panel)
    held_out = (
        "validation" if any("val_accuracy" in r for runs in rows.values() for run in runs for r in run) else "test"
    )
    axes[0].set_ylabel(f"{held_out} accuracy, %")
    if any(len(runs) > 1 for runs in rows.values()):
        made.explain(f"bands: {BAND}")
    legend(made.figure, axes)
    return made


def dress(panel: Axes, title: str, below: str) -> None:
    panel.set_title(plain(title), fontsize=11)
    panel.set_xlabel(below)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.grid(alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def _one_round(panel: Axes) -> None:
    """With a single point, only its round has a tick."""
    rounds = {x for line in panel.get_lines() for x in np.asarray(line.get_xdata())}
    if len(rounds) == 1:
        panel.set_xticks(list(rounds))


def draw_line(made: Picture, panel: Axes, label: str, runs: Runs, name: str, line: Line) -> None:
    """The mean over runs of a number by round, and its interval."""
    curves = [{r["round"]: 100 * r[name] for r in run if name in r} for run in runs]
    rounds = sorted(set.intersection(*(set(c) for c in curves))) if curves else []
    if not rounds:
        return
    values = np.array([[curve[t] for t in rounds] for curve in curves])
    mean, (low, high) = values.mean(axis=0), band(values)
    marker = "o" if len(rounds) < 3 else None
    panel.plot(
        rounds, mean, label=plain(label), color=line.colour, linestyle=line.dashes, linewidth=1.8, marker=marker,
        markersize=4,
    )  # fmt: skip
    ends = [""] * len(rounds)
    if len(curves) > 1:
        panel.fill_between(rounds, low, high, color=line.colour, alpha=0.15, linewidth=0)
        ends = [f" ({a:.2f} to {b:.2f}, {len(curves)} seeds)" for a, b in zip(low, high, strict=True)]
    texts = [f"{label}, round {t}: {value:.2f} %{end}" for t, value, end in zip(rounds, mean, ends, strict=True)]
    made.points(panel, rounds, list(mean), line.colour, texts)


def band(values: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Lower and upper end over runs (N, T): the 95 % interval of their mean, or the range of fewer than `ENOUGH`."""
    count = len(values)
    if count < ENOUGH:
        return values.min(axis=0), values.max(axis=0)
    half = half_interval(values.std(axis=0, ddof=1), count)
    return (values.mean(axis=0) - half).clip(min=0), (values.mean(axis=0) + half).clip(max=100)
