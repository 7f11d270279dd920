"""Did the federation help each site? As a table, and as a picture of the gains."""

from __future__ import annotations

from collections.abc import Sequence

from fedproc.comparison.sites import Interval, SiteRow
from fedproc.figures.style import Picture, lines, picture, plain
from fedproc.report.tables import Shown, Table

TITLE = "accuracy on each site's own {held_out} images, %"
NOTE = (
    "Federated: the model that all sites trained; alone: each site on its own images, as many epochs; fine-tuned: each "
    "site from the federated model on, on its own images. Gains are over alone, in points, with 95 % intervals by "
    "bootstrap over {what}{seeds}; an interval that holds 0 shows no difference."
)


def site_table(rows: Sequence[SiteRow]) -> Table:
    """One row for each site and method."""
    alone, tuned = any(row.alone for row in rows), any(row.fine_tuned for row in rows)
    grouped = any(row.groups and round(row.groups) != round(row.images) for row in rows)
    heads = ["site", "method", "images"]
    heads += (["alone"] if alone else []) + ["federated"] + (["federated gain"] if alone else [])
    heads += (["fine-tuned"] if tuned else []) + (["fine-tuned gain"] if tuned and alone else [])
    cells, before = [], ""
    for row in rows:
        images = Shown(f"{row.images:.0f}", row.images, {"groups": row.groups} if grouped else {})
        line = [Shown(row.site if row.site != before else ""), Shown(row.label), images]
        before = row.site
        line += [_accuracy(row.alone, "alone")] if alone else []
        line += [_accuracy(row.federated, "federated")]
        line += [_gain(row.gain, "federated gain")] if alone else []
        line += [_accuracy(row.fine_tuned, "fine-tuned")] if tuned else []
        line += [_gain(row.fine_tuned_gain, "fine-tuned gain")] if tuned and alone else []
        cells.append(line)
    what = "groups of images" if grouped else "images"
    seeds = max((row.seeds for row in rows), default=1)
    over = "" if seeds == 1 else f"; means over {seeds} seeds"
    return Table(TITLE.format(held_out=_held_out(rows)), heads, cells, NOTE.format(what=what, seeds=over))


def _held_out(rows: Sequence[SiteRow]) -> str:
    return " or ".join(dict.fromkeys(row.held_out for row in rows)) or "test"


def _accuracy(found: Interval | None, name: str) -> Shown:
    if found is None:
        return Shown("-")
    more = {f"{name} low": 100 * found.low, f"{name} high": 100 * found.high}
    return Shown(f"{100 * found.value:.1f}", 100 * found.value, more)


def _gain(found: Interval | None, name: str) -> Shown:
    if found is None:
        return Shown("-")
    more = {f"{name} low": 100 * found.low, f"{name} high": 100 * found.high}
    text = f"{100 * found.value:+.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})"
    return Shown(text, 100 * found.value, more)


def draw_gains(rows: Sequence[SiteRow]) -> Picture | None:
    """The gain over training alone of each site and method, with its interval; fine-tuned ones hollow."""
    shown = [row for row in rows if row.gain is not None]
    if not shown:
        return None
    sites = list(dict.fromkeys(row.site for row in shown))
    looks = lines(dict.fromkeys(row.label for row in shown))
    steps = 2 * len(looks)
    made = picture(8, 1.3 + 0.16 * (steps + 1) * len(sites))
    panel = made.figure.subplots()
    panel.axvline(0, color="#666666", linewidth=1)
    for number, (label, look) in enumerate(looks.items()):
        for kind, filled in (("federated", True), ("fine-tuned", False)):
            found = [(row, row.gain if filled else row.fine_tuned_gain) for row in shown if row.label == label]
            drawn = [(row, gain) for row, gain in found if gain is not None]
            if not drawn:
                continue
            at = [
                sites.index(row.site) + (2 * number + (not filled) - (steps - 1) / 2) * 0.8 / steps for row, _ in drawn
            ]
            value = [100 * gain.value for _, gain in drawn]
            below = [100 * (gain.value - gain.low) for _, gain in drawn]
            above = [100 * (gain.high - gain.value) for _, gain in drawn]
            panel.errorbar(
                value, at, xerr=[below, above], fmt="o", color=look.colour, markersize=5, linewidth=1.3, capsize=2,
                markerfacecolor=look.colour if filled else "white", label=plain(f"{label}, {kind}"),
            )  # fmt: skip
            texts = [
                f"{row.site}, {label}, {kind}: {100 * gain.value:+.1f} points "
                f"({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
                for row, gain in drawn
            ]
            made.points(panel, value, at, look.colour, texts)
    panel.set_yticks(range(len(sites)), [plain(site) for site in sites])
    panel.invert_yaxis()
    panel.set_xlabel(f"gain over training alone, points of accuracy on the site's own {_held_out(rows)} images")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return made
