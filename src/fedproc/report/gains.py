"""What each site gained over training alone, as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from fedproc.comparison.sites import SiteRow
from fedproc.figures.style import Picture, lines, picture, plain
from fedproc.report.sites import held_out_images


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
            below = [100 * (gain.value - gain.low) if gain.told else 0.0 for _, gain in drawn]
            above = [100 * (gain.high - gain.value) if gain.told else 0.0 for _, gain in drawn]
            panel.errorbar(
                value, at, xerr=[below, above], fmt="o", color=look.colour, markersize=5, linewidth=1.3, capsize=2,
                markerfacecolor=look.colour if filled else "white", label=plain(f"{label}, {kind}"),
            )  # fmt: skip
            texts = [
                f"{row.site}, {label}, {kind}: {100 * gain.value:+.1f} points "
                + (f"({100 * gain.low:+.1f} to {100 * gain.high:+.1f})" if gain.told else "(too few for an interval)")
                for row, gain in drawn
            ]
            made.points(panel, value, at, look.colour, texts)
    panel.set_yticks(range(len(sites)), [plain(site) for site in sites])
    panel.invert_yaxis()
    panel.set_xlabel(f"gain over training alone, points of accuracy on the site's own {held_out_images(rows)} images")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return made
