"""Heatmaps: samples per client and class, confusion matrices, accuracy per class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes

from fedproc.figures.style import Picture, picture, plain

MOST_NUMBERS = 400  # cells up to which their numbers are readable
MOST_NAMES = 40
LONGEST = 24
Array = npt.NDArray[np.float64]


def draw_holdings(
    counts: npt.NDArray[np.int64], class_names: Sequence[str], title: str, client_names: Sequence[str] = ()
) -> Picture:
    """`counts` (clients, classes), with the clients' sizes as bars next to it."""
    clients, classes = counts.shape
    named = len(client_names) == clients
    labels = list(client_names) if named else [str(client) for client in range(clients)]
    made = picture(min(4.5 + 0.55 * classes, 16), min(2.2 + 0.32 * clients, 14))
    heat, bars = made.figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    numbers = [[f"{count:,}" if count else "·" for count in row] for row in counts]
    texts = [
        f"{'' if named else 'client '}{client}, {name}: {count:,}" for client, row in zip(labels, counts, strict=True)
        for name, count in zip(class_names, row, strict=True)
    ]  # fmt: skip
    _shade(made, heat, counts.astype(np.float64), class_names, labels, numbers, texts)
    heat.set_ylabel("site" if named else "client")
    bars.barh(np.arange(clients) + 0.5, counts.sum(axis=1), color="#0072B2", height=0.7)
    bars.set_xlabel("samples")
    bars.spines[["top", "right"]].set_visible(False)
    bars.tick_params(axis="x", labelsize=8)
    made.figure.suptitle(plain(title), fontsize=11)
    return made


def draw_classes(accuracies: Mapping[str, Sequence[float]], class_names: Sequence[str]) -> Picture:
    """Accuracy per method and class, in per cent."""
    values = 100 * np.array(list(accuracies.values()))
    made = picture(min(3.5 + 0.62 * len(class_names), 16), 1.6 + 0.34 * len(values))
    panel = made.figure.subplots()
    numbers = [["–" if np.isnan(value) else f"{value:.0f}" for value in row] for row in values]
    shown = [["no images of this class" if np.isnan(value) else f"{value:.2f} %" for value in row] for row in values]
    texts = [f"{label}, {n}: {t}" for label, row in zip(accuracies, shown, strict=True)
             for n, t in zip(class_names, row, strict=True)]  # fmt: skip
    _shade(made, panel, values, class_names, list(accuracies), numbers, texts, most=100.0)
    return made


def draw_confusions(confusions: Mapping[str, npt.NDArray[np.int64]], class_names: Sequence[str]) -> Picture:
    """One confusion matrix per method, in per cent of each true class."""
    across = min(3, len(confusions))
    down = -(-len(confusions) // across)
    side = min(1.6 + 0.3 * len(class_names), 6.0)
    made = picture(across * side + 0.8, down * side + 0.4)
    panels = made.figure.subplots(down, across, squeeze=False).flatten()
    for panel in panels[len(confusions) :]:
        panel.set_axis_off()
    for panel, (label, counts) in zip(panels, confusions.items(), strict=False):
        shares = 100 * counts / counts.sum(axis=1, keepdims=True).clip(min=1)
        small = len(class_names) <= 12
        numbers = [[f"{value:.0f}" if small and value >= 0.5 else "" for value in row] for row in shares]
        texts = [
            f"{label}: {true} predicted as {predicted}: {counts[i, j]:,} ({shares[i, j]:.1f} %)"
            for i, true in enumerate(class_names)
            for j, predicted in enumerate(class_names)
        ]
        _shade(made, panel, shares, class_names, class_names, numbers, texts, most=100.0)
        panel.set_title(plain(label), fontsize=10)
        panel.set_ylabel("true class", fontsize=8)
        panel.set_xlabel("predicted class", fontsize=8)
    return made


def _shade(
    made: Picture, panel: Axes, values: Array, columns: Sequence[str], rows: Sequence[str],
    numbers: Sequence[Sequence[str]], texts: Sequence[str], most: float | None = None,
) -> None:  # fmt: skip
    """Cells (rows, columns), darker for larger values, with their numbers if there are few."""
    name = f"cells-{len(made.texts)}"
    top = most if most is not None else max(float(values.max()), 1.0)
    panel.pcolormesh(values, cmap="Blues", vmin=0, vmax=top, gid=name, edgecolors="none")
    made.texts[name] = texts
    panel.set_xlim(0, values.shape[1])
    panel.set_ylim(values.shape[0], 0)
    _names(panel, columns, rows)
    if values.size <= MOST_NUMBERS:
        for (i, j), value in np.ndenumerate(values):
            shade = "white" if value > 0.45 * top else "#555555"
            if numbers[i][j]:
                text = panel.text(j + 0.5, i + 0.5, numbers[i][j], ha="center", va="center", fontsize=7, color=shade)
                text.set_in_layout(False)  # it fits its cell


def _short(name: str) -> str:
    """Long names are shortened to leave room for the cells; tooltips have them in full."""
    return plain(name if len(name) <= LONGEST else f"{name[: LONGEST - 9]}…{name[-8:]}")


def _names(panel: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    if len(columns) <= MOST_NAMES:
        panel.set_xticks(np.arange(len(columns)) + 0.5, list(map(_short, columns)), rotation=45, ha="right", fontsize=8)
    else:
        panel.set_xticks([])
        panel.set_xlabel(f"{len(columns)} classes")
    if len(rows) <= MOST_NAMES:
        panel.set_yticks(np.arange(len(rows)) + 0.5, list(map(_short, rows)), fontsize=8)
    else:
        panel.set_yticks([])
