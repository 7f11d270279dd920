"""A forest plot: one row's difference to the reference in each setting, with its interval, and their mean."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes

from fedproc.figures.style import Picture, picture, plain
from fedproc.statistics import EQUAL, Paired

Settings = Mapping[str, Paired]
ROW = 0.27  # inches
EXPLAINED = (
    "dot and bar: mean and 95 % interval, paired over seeds; diamond: mean over settings; open: one seed; "
    f"grey: ±{100 * EQUAL:g} points"
)
MEAN = "#666666"  # which the page makes lighter where it is dark; matplotlib writes no black


def draw_forest(groups: Mapping[str, Settings], means: Settings, label: str, reference: str, shade: str) -> Picture:
    """Settings from top to bottom under their group's name, if it has one, and the means of some of them, by name, at
    the end of the first group. Differences are drawn in points; one without interval is an open circle.
    """
    heads = sum(1 for name in groups if name)
    made = picture(9, 1.3 + ROW * (heads + sum(map(len, groups.values())) + len(means)))
    made.figure.set_layout_engine("constrained", w_pad=0.1)
    panel = made.figure.subplots()
    panel.axvspan(-100 * EQUAL, 100 * EQUAL, color="#999999", alpha=0.15, linewidth=0)
    panel.axvline(0, color="#666666", linewidth=1)
    names: list[str] = []
    for place, (head, settings) in enumerate(groups.items()):
        names += [head] if head else []
        for setting, one in settings.items():
            _interval(made, panel, len(names), setting, one, shade)
            names.append(setting)
        for setting, one in means.items() if place == 0 else ():
            _diamond(made, panel, len(names), setting, one)
            names.append(setting)
    panel.set_yticks(range(len(names)), [plain(name) for name in names])
    bold = {*groups, *means}
    for tick, name in zip(panel.get_yticklabels(), names, strict=True):
        tick.set_fontweight("bold" if name in bold else "normal")
    panel.tick_params(axis="y", length=0, labelsize=9)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_xlabel(plain(f"final accuracy of {label} minus {reference}'s, points"))
    panel.grid(axis="x", alpha=0.25)
    panel.spines[["top", "right", "left"]].set_visible(False)
    made.explain(EXPLAINED)
    return made


def in_words(one: Paired) -> str:
    """The difference in points with its interval."""
    if one.low is None or one.high is None:
        return f"{100 * one.difference:+.2f}"
    return f"{100 * one.difference:+.2f} ({100 * one.low:+.2f} to {100 * one.high:+.2f})"


def _interval(made: Picture, panel: Axes, place: int, setting: str, one: Paired, shade: str) -> None:
    middle, filled = 100 * one.difference, one.low is not None
    if one.low is not None and one.high is not None:
        panel.hlines(place, 100 * one.low, 100 * one.high, color=shade, linewidth=2)
    panel.plot(middle, place, "o", color=shade, markersize=6, fillstyle="full" if filled else "none")
    _say(made, panel, place, setting, one, shade)


def _diamond(made: Picture, panel: Axes, place: int, setting: str, one: Paired) -> None:
    middle, low, high = (100 * (value or 0.0) for value in (one.difference, one.low, one.high))
    panel.fill([low, middle, high, middle], [place, place - 0.3, place, place + 0.3], color=MEAN, linewidth=0)
    _say(made, panel, place, setting, one, MEAN)


def _say(made: Picture, panel: Axes, place: int, setting: str, one: Paired, shade: str) -> None:
    """The numbers to the right, and as a tooltip."""
    seeds = f"{len(one.seeds)} seed{'s' if len(one.seeds) > 1 else ''}"
    panel.text(1.02, place, in_words(one), transform=panel.get_yaxis_transform(), va="center", fontsize=8)
    made.points(panel, [100 * one.difference], [float(place)], shade, [f"{setting}: {in_words(one)}, {seeds}"])
