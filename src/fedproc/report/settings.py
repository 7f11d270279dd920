"""Rows over several settings: a forest plot of each, and the mean of its differences to the reference."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fedproc.figures.forest import draw_forest
from fedproc.figures.style import lines
from fedproc.report.families import finals, validated
from fedproc.report.gather import Group
from fedproc.report.page import Page
from fedproc.report.summary import means_over_settings
from fedproc.statistics import ENOUGH, over_settings

WIDTH = 34  # characters of a setting's name


def add_settings(page: Page, groups: Sequence[Group]) -> None:
    """Nothing where no row has the same reference in two settings."""
    tested = [group for group in groups if not validated(group)]
    found = [(group.comparison.reference, finals(group)) for group in tested]
    table = means_over_settings(found)
    if table is None:
        return
    parts: list[str] = []
    pairs = dict.fromkeys((reference, label) for reference, by_label in found for label in by_label)
    shades = lines(dict.fromkeys(label for _, label in pairs))
    for reference, label in pairs:
        settings = {
            _name(group, place): by_label[label]
            for place, (group, (other, by_label)) in enumerate(zip(tested, found, strict=True))
            if other == reference and label in by_label
        }
        mean = over_settings(list(settings.values())) if len(settings) > 1 else None
        if mean is not None and len(mean.seeds) >= ENOUGH:
            drawn = draw_forest({"": settings}, {"mean": mean}, label, reference, shades[label].colour)
            title = f"{label} minus {reference} in each setting"
            parts.append(page.figure(f"settings-{len(parts)}", drawn, title))
    page.section("settings", "Over settings", *parts, page.table("settings", table))


def _name(group: Group, place: int) -> str:
    """Short, and no other's: comparisons may have folders of one name."""
    name = textwrap.shorten(group.name or group.title, WIDTH, placeholder=" ...")
    return f"{place + 1}. {name}"
