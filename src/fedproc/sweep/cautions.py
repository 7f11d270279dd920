"""What of a search's command can be run and is not what it seems: a sentence each, said before anything is run."""

from __future__ import annotations

from collections.abc import Iterator

from fedproc.sweep.plan import Plan
from fedproc.sweep.proposals import grid_size


def cautions(plan: Plan) -> list[str]:
    return [*_unused_tables(plan), *_promotions(plan), *_scores(plan)]


def _unused_tables(plan: Plan) -> Iterator[str]:
    """Tables of methods of which there is no row."""
    methods = {row.method for row in plan.rows}
    for name in (name for name in plan.space.by_method if name not in methods):
        yield f"{plan.space.path}: [{name}]: no row is of {name}; nothing in this table is searched"


def _promotions(plan: Plan) -> Iterator[str]:
    """Rungs that are to keep more trials than there are."""
    for rung in plan.rungs[1:]:
        trials = {row.label: plan.trials or grid_size(row.domains) for row in plan.rows}
        short = {label: count for label, count in trials.items() if rung.keep is not None and rung.keep > count}
        if short:
            seeds = ",".join(map(str, rung.seeds))
            counts = " and ".join(map(str, sorted(set(short.values()))))
            named = f"{', '.join(short)} with {counts} trial{'s' if counts != '1' else ''}"
            yield f"--promote {rung.keep}:{rung.rounds}:{seeds}: all trials go on, of {named}; none is left behind"


def _scores(plan: Plan) -> Iterator[str]:
    """Rows that are ranked by another number than the one that they are judged by."""
    if plan.apart:
        others = ", ".join(row.label for row in plan.rows if row.label not in plan.apart)
        yield (
            f"{', '.join(plan.apart)}: ranked by final accuracy, not by that of clients' own models, which {others} "
            "has none of; a search without that ranks by own accuracy"
        )
