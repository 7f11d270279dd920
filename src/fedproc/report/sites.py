"""Did the federation help each site? As a table; `gains.py` draws it."""

from __future__ import annotations

from collections.abc import Sequence

from fedproc.comparison.sites import FEWEST, Interval, SiteRow
from fedproc.report.tables import Shown, Table

TITLE = "accuracy on each site's own {held_out} images, %"
NOTE = (
    "Federated: the model that all sites trained; alone: each site on its own images, as many epochs; fine-tuned: each "
    "site from the federated model on, on its own images. Gains are over alone, in points, with 95 % intervals by "
    "bootstrap over {what}{seeds}; an interval that holds 0 shows no difference."
)
FEW = "too few"


def site_table(rows: Sequence[SiteRow]) -> Table:
    """One row for each site and method."""
    alone, tuned = any(row.alone for row in rows), any(row.fine_tuned for row in rows)
    grouped = any(row.groups and round(row.groups) != round(row.images) for row in rows)
    heads = ["site", "method", "images", *(["groups"] if grouped else [])]
    heads += (["alone"] if alone else []) + ["federated"] + (["federated gain"] if alone else [])
    heads += (["fine-tuned"] if tuned else []) + (["fine-tuned gain"] if tuned and alone else [])
    cells, before = [], ""
    for row in rows:
        line = [Shown(row.site if row.site != before else ""), Shown(row.label)]
        line += [Shown(f"{number:.0f}", number) for number in (row.images, row.groups)[: 1 + grouped]]
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
    note = NOTE.format(what=what, seeds=over)
    if any(not found.told for row in rows for found in (row.federated, row.gain) if found is not None):
        note += f" {FEW.capitalize()}: no interval is told of fewer than {FEWEST} {what}."
    if any(row.kept for row in rows) and (alone or tuned):
        note += " The federated model is its best round's, by validation images; the others are their last epoch's."
    return Table(TITLE.format(held_out=held_out_images(rows)), heads, cells, note)


def held_out_images(rows: Sequence[SiteRow]) -> str:
    return " or ".join(dict.fromkeys(row.held_out for row in rows)) or "test"


def _accuracy(found: Interval | None, name: str) -> Shown:
    if found is None:
        return Shown("-")
    return Shown(f"{100 * found.value:.1f}", 100 * found.value, _bounds(found, name))


def _gain(found: Interval | None, name: str) -> Shown:
    if found is None:
        return Shown("-")
    within = f"{100 * found.low:.1f} to {100 * found.high:.1f}" if found.told else FEW
    return Shown(f"{100 * found.value:+.1f} ({within})", 100 * found.value, _bounds(found, name))


def _bounds(found: Interval, name: str) -> dict[str, float]:
    return {f"{name} low": 100 * found.low, f"{name} high": 100 * found.high} if found.told else {}
