"""Which tests of a page are its primary family."""

from __future__ import annotations

from collections.abc import Sequence

from fedproc.errors import InputError
from fedproc.report.gather import Group
from fedproc.statistics import Paired, family


def finals(group: Group) -> dict[str, Paired]:
    """Differences in final accuracy."""
    return group.comparison.paired(f"{group.comparison.prefix}final_accuracy") if group.comparison.rows else {}


def validated(group: Group) -> bool:
    """Whether its accuracies are of validation samples."""
    return bool(group.comparison.rows and group.comparison.prefix)


def families_of(groups: Sequence[Group], primary: Sequence[str]) -> dict[int, dict[str, Paired]]:
    """The tests of the one primary family, by the place of their group: those of the named comparisons, or of the only
    setting there is.
    """
    known = {group.name for group in groups} - {""}
    if unknown := [name for name in primary if name not in known]:
        raise InputError(f"--primary {unknown[0]}: expected one of {', '.join(sorted(known)) or 'no comparison here'}")
    chosen = [place for place, group in enumerate(groups) if group.name in primary or len(groups) == 1]
    tests = family({(place, label): one for place in chosen for label, one in finals(groups[place]).items()})
    return {place: {label: one for (at, label), one in tests.items() if at == place} for place in chosen}
