"""Where numbers come from: commits, marked where they are not one clean commit; all runs, commands, machines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fedproc.report.gather import Gathered, many
from fedproc.report.page import Page
from fedproc.report.tables import Shown, Table
from fedproc.runs.provenance import Origin, origins
from fedproc.runs.saved import SavedRun

Environments = Sequence[Mapping[str, Any]]  # what environment.json of each run holds
KINDS = ("of clean commits", "of trees with uncommitted changes", "of unknown commits", "continued with other sources")
MOST = 6  # commits that are named
SIGNS = 12  # of a source's SHA-256


def marked(environments: Environments) -> bool:
    """Whether runs come from a changed tree, from an unknown commit or from several states of the sources."""
    found = _all(environments)
    return several(environments) or any(not origin.clean for origin in found)


def of_rows(rows: Mapping[str, Environments]) -> str:
    """The commits of each row of a table; one sentence where all rows have the same."""
    labels: dict[tuple[Origin, ...], list[str]] = {}
    for label, environments in rows.items():
        if environments:
            labels.setdefault(_all(environments), []).append(label)
    if not labels:
        return ""
    if len(labels) == 1:
        return f"Sources of all rows: {_words(*labels)}."
    return "Sources: " + "; ".join(f"{', '.join(who)}: {_words(found)}" for found, who in labels.items()) + "."


def of_runs(environments: Environments) -> str:
    """How many runs are of clean commits, of changed trees, of unknown commits, or of several states of the sources."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for environment in environments:
        kinds.setdefault(_kind(origins(environment)), []).append(environment)
    parts = []
    for kind in (kind for kind in KINDS if kind in kinds):
        found = _all(kinds[kind])
        named = _words(found) if kind == KINDS[3] else _listed([origin.name for origin in found if origin.name])
        parts.append(f"{len(kinds[kind])} of {len(environments)} runs are {kind}" + (f": {named}" if named else ""))
    return f"Sources: {'; '.join(parts)}." if parts else ""


def of_own(rows: Mapping[str, Sequence[SavedRun]]) -> str:
    """Which rows have a person's own method or encoder, which no commit of ours holds: by the hash of its source."""
    found = []
    for label, runs in rows.items():
        for what, digests in (
            ("a method", [run.plugin for run in runs]),
            ("an encoder", [run.config.get("network_sha256") for run in runs]),
        ):
            short = dict.fromkeys(str(digest)[:SIGNS] for digest in digests if digest)
            if short:
                found.append(f"row `{label}`: {what} of one's own, by source hash {', '.join(short)}")
    return f"In no commit of fedproc: {'; '.join(found)}." if found else ""


def _kind(found: tuple[Origin, ...]) -> str:
    if len(found) > 1:
        return KINDS[3]
    (origin,) = found
    return KINDS[0] if origin.clean else KINDS[1] if origin.changed else KINDS[2]


def several(environments: Environments) -> bool:
    """Whether runs that stand side by side come from different states of the sources."""
    return len(_all(environments)) > 1


def _all(environments: Environments) -> tuple[Origin, ...]:
    return tuple(dict.fromkeys(origin for environment in environments for origin in origins(environment)))


def _words(found: Sequence[Origin]) -> str:
    return _listed([str(origin) for origin in found])


def _listed(words: Sequence[str]) -> str:
    shown = list(dict.fromkeys(words))
    return ", ".join(shown[:MOST]) + (f" and {len(shown) - MOST} more" if len(shown) > MOST else "")


def all_runs(page: Page, gathered: Gathered) -> list[str]:
    rows = []
    for group in gathered.groups:
        for run in sorted(group.runs, key=lambda run: (run.method, run.seed)):
            final = run.result.get("final_accuracy", run.result.get("val_final_accuracy"))
            seconds = run.result.get("seconds")
            rows.append(
                [
                    Shown(str(run.folder)),
                    Shown(run.method),
                    Shown(str(run.seed), run.seed),
                    Shown(run.status),
                    Shown(run.held_out),
                    Shown("-") if final is None else Shown(f"{100 * final:.2f}", 100 * final),
                    Shown("-") if seconds is None else Shown(f"{seconds:.1f}", seconds),
                    Shown(", ".join(map(str, origins(run.environment)))),
                ]
            )
    rows += [
        [Shown(str(copy)), Shown(f"a copy of {first}")] + 6 * [Shown("")] for copy, first in gathered.copies.items()
    ]
    heads = ["folder", "method", "seed", "status", "images", "final", "seconds", "commit"]
    table = Table("final accuracy in per cent", heads, rows)
    return (
        [f"<details><summary>{many(len(rows), 'run')}</summary>{page.table('runs', table)}</details>"] if rows else []
    )


def commands_and_machines(runs: Sequence[SavedRun]) -> list[str]:
    """Every command once, and every machine with its versions."""
    commands: dict[str, None] = {}
    machines: dict[str, None] = {}
    for run in runs:
        e = run.environment
        if not e:
            continue
        program, *words = e.get("command") or ["?"]
        commands[shlex.join(["fedproc" if program in ("fedproc", "__main__.py") else program, *words])] = None
        versions = ", ".join(f"{name} {number}" for name, number in e.get("packages", {}).items() if number)
        layout = f"{e.get('executor')} lanes ({e.get('lanes')}), {e.get('precision', 'fp32')}"
        machine = (f"{e.get('device_name')} ({e.get('device')})", f"{e.get('cores')} cores", str(e.get("platform")))
        where = ", ".join([*machine, f"Python {e.get('python')}"])
        commit = f", commit {e['commit']}" if e.get("commit") else ""
        machines[f"{where}; {layout}; {versions}{commit}"] = None
    parts = [f"<pre>{escape(chr(10).join(commands))}</pre>"] if commands else []
    parts += [f'<p class="soft">{escape(machine)}</p>' for machine in machines]
    return parts
