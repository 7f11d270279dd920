"""What a section of the page says of its clients: how private they are, whose answers were refused, and who was made
hostile.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedproc.attacks import ATTACKS, said
from fedproc.report.gather import Group
from fedproc.runs.result import promise_kept, refusals_in_words


def private(group: Group) -> list[str]:
    """A line for each private run: its epsilon."""
    found = {str(run.folder): promise_kept(run.result).removeprefix(", ") for run in group.runs}
    return _listed([f"{folder}: {words}" for folder, words in found.items() if words])


def refused(group: Group) -> list[str]:
    """A line for each run of which answers were refused."""
    found = {str(run.folder): refusals_in_words(run.metrics) for run in group.runs}
    return _listed([f"{folder}: {words}" for folder, words in found.items() if words])


def hostile(group: Group) -> list[str]:
    """A line for each way in which clients were hostile, with the runs' methods and merges."""
    runs: dict[str, dict[str, None]] = {}
    for run in group.runs:
        c = run.config
        if c["attack"] in ATTACKS and c["attackers"] is not None:
            words = said(c["attack"], c["attack_strength"], c["attackers"], c["clients"])
            runs.setdefault(words, {})[f"{run.method} with --merge {c['merge']}" if c.get("merge") else run.method] = (
                None
            )
    return _listed([f"{words}: {', '.join(which)}" for words, which in runs.items()])


def _listed(lines: Sequence[str]) -> list[str]:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return [f'<ul class="note">{items}</ul>'] if items else []
