"""Seconds per round by phase, as a bar chart."""

from __future__ import annotations

from collections.abc import Mapping

from fedproc.figures.style import Picture, colour, picture, plain

PARTS = ("train", "prototypes", "merge", "evaluation")


def draw_times(seconds: Mapping[str, Mapping[str, float]]) -> Picture:
    """Seconds per round of each row by phase, stacked in one bar."""
    made = picture(9, 1.4 + 0.36 * len(seconds))
    panel = made.figure.subplots()
    labels, ends = [plain(label) for label in seconds], [0.0] * len(seconds)
    for place, part in enumerate(PARTS):
        spent = [row.get(part, 0.0) for row in seconds.values()]
        name = f"bars-{part}"
        bars = panel.barh(labels, spent, left=ends, color=colour(place), label=part, height=0.7)
        for number, (bar, label, value) in enumerate(zip(bars, seconds, spent, strict=True)):
            bar.set_gid(f"{name}-{number}")
            made.texts[f"{name}-{number}"] = [f"{label}, {part}: {value:.4g} s per round"]
        ends = [end + value for end, value in zip(ends, spent, strict=True)]
    panel.invert_yaxis()
    panel.set_xlabel("seconds per round")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8, ncols=len(PARTS), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return made
