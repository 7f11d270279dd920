"""Rows over several settings: a forest plot of each, and the mean of its differences to the reference."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from fedproc.figures.forest import draw_forest
from fedproc.figures.style import lines
from fedproc.report.families import finals, validated
from fedproc.report.gather import Group, repeats
from fedproc.report.page import Page
from fedproc.report.summary import means_over_settings
from fedproc.runs.saved import SavedRun
from fedproc.statistics import ENOUGH, Paired, over_settings

Found = list[tuple[str, dict[str, Paired]]]  # of each group the reference and the differences to it

WIDTH = 34  # characters of a setting's name


def add_settings(page: Page, groups: Sequence[Group]) -> None:
    """Nothing where no row has the same reference in two settings."""
    tested = [group for group in groups if not validated(group)]
    found, again = _once(tested)
    table = means_over_settings(found)
    if table is None:
        return
    if again:
        table = replace(
            table, note=f"{table.note} Settings that stand here twice are counted once: {'; '.join(again)}."
        )
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


def _once(groups: Sequence[Group]) -> tuple[Found, list[str]]:
    """Without what another group has of the same setting with more seeds; and what that is, in words."""
    found: Found = [(group.comparison.reference, finals(group)) for group in groups]
    kept: dict[tuple[str, str], list[int]] = {}  # the places of a row and its reference
    again: dict[tuple[int, int], list[str]] = {}
    by_seeds = sorted(
        (-len(one.seeds), place, label) for place, (_, of) in enumerate(found) for label, one in of.items()
    )
    for _, place, label in by_seeds:
        reference, differences = found[place]
        before = kept.setdefault((reference, label), [])
        pair = (reference, label)
        first = next(
            (k for k in before if all(repeats(_runs(groups[place], n), _runs(groups[k], n)) for n in pair)), None
        )
        if first is None:
            before.append(place)
        else:
            del differences[label]
            again.setdefault((place, first), []).append(label)
    names = [_name(group, place) for place, group in enumerate(groups)]
    return found, [f"{names[place]} repeats {names[k]} ({', '.join(of)})" for (place, k), of in again.items()]


def _runs(group: Group, label: str) -> list[SavedRun]:
    (row,) = (row for row in group.comparison.rows if row.label == label)
    return [run for run in row.runs if isinstance(run, SavedRun)]


def _name(group: Group, place: int) -> str:
    """Short, and no other's: comparisons may have folders of one name."""
    name = textwrap.shorten(group.name or group.title, WIDTH, placeholder=" ...")
    return f"{place + 1}. {name}"
