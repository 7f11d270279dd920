"""Differences to the reference: a dot for each seed, the mean with its interval, and the band that counts as equal."""

from __future__ import annotations

from collections.abc import Mapping

from fedproc.figures.style import Picture, lines, picture, plain
from fedproc.statistics import EQUAL, Paired


def draw_differences(found: Mapping[str, Paired], reference: str) -> Picture:
    """One line for each row, the first on top."""
    made = picture(8.5, 1.5 + 0.42 * len(found))
    panel = made.figure.subplots()
    shades = lines(found)
    panel.axvspan(-100 * EQUAL, 100 * EQUAL, color="#999999", alpha=0.15, linewidth=0)
    panel.axvline(0, color="#666666", linewidth=1)
    for place, (label, one) in enumerate(found.items()):
        points = [100 * value for value in one.values]
        shade = shades[label].colour
        panel.plot(points, [place] * len(points), "o", color=shade, alpha=0.45, markersize=4, linestyle="none")
        texts = [f"{label}, seed {seed}: {value:+.2f}" for seed, value in zip(one.seeds, points, strict=False)]
        if points:
            made.points(panel, points, [float(place)] * len(points), shade, texts)
        middle = 100 * one.difference
        if one.low is not None and one.high is not None:
            panel.hlines(place, 100 * one.low, 100 * one.high, color=shade, linewidth=2)
        panel.plot(middle, place, "D", color=shade, markersize=6, markeredgecolor="white")
    panel.set_yticks(range(len(found)), [plain(label) for label in found])
    panel.set_ylim(len(found) - 0.5, -0.5)
    panel.set_xlabel(plain(f"final accuracy minus {reference}'s, points"))
    panel.grid(axis="x", alpha=0.25)
    panel.spines[["top", "right", "left"]].set_visible(False)
    made.explain(f"dots: seeds; diamond and bar: mean and 95 % interval; grey: ±{100 * EQUAL:g} points")
    return made
