"""What a search leaves behind: ranking.json, tables, a picture, and winners.toml for `fedproc compare --variants`."""

from __future__ import annotations

import json
import shlex
import statistics
from pathlib import Path
from typing import Any

from fedproc.comparison.searched import SEARCHED
from fedproc.files import write_file, write_json
from fedproc.given import flag
from fedproc.report.tables import Shown, Table
from fedproc.sweep.importance import Importance, importance, shown
from fedproc.sweep.picture import draw_options
from fedproc.sweep.plan import Plan, PlannedRow, as_overrides
from fedproc.sweep.ranking import Trial, winner
from fedproc.sweep.search import Swept
from fedproc.sweep.space import Value

WINNERS = "winners.toml"
FLATTERED = (
    "Validation accuracy. A winner's own score flatters it, since it was chosen by it: the test is `fedproc compare` "
    "with winners.toml, on seeds that the search has not used."
)
ROUGH = (
    "Of the first rung's trials. `gap`: best minus worst mean over an option's values, points; `explained`: share of "
    "the scores' variance, corrected for the number of values; p by shuffling. Options vary together, so one may stand "
    "for another."
)


def write_outcome(swept: Swept) -> None:
    """Write everything but the runs; called again it writes the same."""
    folder = swept.path
    measured = measures(swept)
    write_json(folder / "ranking.json", _written(swept, measured))
    for name, table in (("ranking", ranking(swept)), ("options", options(swept))):
        for kind in ("md", "csv"):
            text = table.formats()[kind]
            write_file(folder / f"{name}.{kind}", lambda path, text=text: path.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    drawn = {
        row.label: (row.domains, swept.rows[row.label], measured[row.label]) for row in swept.plan.rows if row.domains
    }
    if drawn:
        picture = draw_options(drawn)
        write_file(folder / "options.png", picture.save)
        write_file(folder / "options.svg", lambda path: picture.save(path, "svg"))
    text = winners(swept)
    write_file(folder / WINNERS, lambda path: path.write_text(text, encoding="utf-8"))


def measures(swept: Swept) -> dict[str, dict[str, Importance | None]]:
    """Which option mattered, by row."""
    return {
        row.label: {name: importance(name, domain, swept.rows[row.label]) for name, domain in row.domains.items()}
        for row in swept.plan.rows
    }


def ranking(swept: Swept) -> Table:
    """Every row's trials, the best first, with their score in each rung, the last one first."""
    plan, rows = swept.plan, []
    rungs = list(reversed(range(len(plan.rungs))))
    for row in plan.rows:
        for place, trial in enumerate(swept.rows[row.label]):
            named = Shown(row.label if place == 0 else "")
            sets = ", ".join(f"{name} {shown(value)}" for name, value in trial.sets.items())
            cells = [_cell(trial, rung, len(plan.rungs[rung].seeds)) for rung in rungs]
            rows.append([named, Shown(str(trial.number), trial.number), *cells, Shown(sets or "defaults")])
    heads = [_head(plan, rung) for rung in rungs]
    title = f"trials of each row, the best first; {_score(plan)} on validation samples, %"
    return Table(title, ["", "trial", *heads, "options"], rows, FLATTERED)


def _score(plan: Plan) -> str:
    return {
        "final": "final accuracy",
        "last10": "accuracy over the last 10 rounds",
        "prototype": "accuracy of the nearest prototype",
        "own": "own accuracy",
    }[plan.score]


def _head(plan: Plan, rung: int) -> str:
    step = plan.rungs[rung]
    return f"{step.rounds} rounds, seed{'s' if len(step.seeds) > 1 else ''} {' '.join(map(str, step.seeds))}"


def _cell(trial: Trial, rung: int, seeds: int) -> Shown:
    found = trial.scores[rung] if rung < len(trial.scores) else {}
    if any(score is None for score in found.values()):
        return Shown("diverged")
    mean = trial.mean(rung)
    if mean is None:
        return Shown("")
    spread = statistics.stdev([s for s in found.values() if s is not None]) if seeds > 1 else None
    tail = "" if spread is None else f" ± {100 * spread:.2f}"
    return Shown(
        f"{100 * mean:.2f}{tail}", 100 * mean, {} if spread is None else {f"deviation {rung + 1}": 100 * spread}
    )


def options(swept: Swept) -> Table:
    """Which option mattered."""
    rows = []
    for label, found in measures(swept).items():
        for place, (name, one) in enumerate(found.items()):
            named = Shown(label if place == 0 else "")
            if one is None:
                rows.append([named, Shown(name), Shown("-"), Shown("-"), Shown("-"), Shown("too few trials")])
                continue
            means = "; ".join(f"{value}: {100 * mean:.2f} ({count})" for value, (count, mean) in one.means.items())
            share = Shown("-") if one.share is None else Shown(f"{100 * one.share:.0f} %", one.share)
            gap = Shown(f"{100 * one.gap:.2f}", 100 * one.gap)
            rows.append([named, Shown(name), gap, share, Shown(f"{one.p:.3f}", one.p), Shown(means)])
    heads = ["", "option", "gap", "explained", "p", "mean by value (trials)"]
    return Table("which option mattered", heads, rows, ROUGH)


def winners(swept: Swept) -> str:
    """A TOML file of variants, one for each row that has a winner."""
    plan = swept.plan
    lines = [
        "# The best trial of each row of a search on validation samples. On the test set, with seeds of its own:",
        "#",
    ]
    lines += [f"#     {compare_command(plan)}", ""]
    for row in plan.rows:
        best = winner(swept.rows[row.label])
        if best is None:
            lines += [f"# {row.label}: no trial finished", ""]
            continue
        scores = ", ".join(_text(plan, best, rung) for rung in range(best.reached + 1))
        lines += [f"# trial {best.number}: {scores}", f"[{_key(f'{row.label}-tuned')}]"]
        lines += [f"{name} = {_toml(value)}" for name, value in _overrides(row, best).items()]
        lines += [f"{SEARCHED} = {json.dumps(searched_seeds(plan, row))}", ""]
    return "\n".join(lines)


def searched_seeds(plan: Plan, row: PlannedRow) -> list[int]:
    """On which `compare` is not to test what won: the seeds of all rungs, and of the search that the row came from."""
    return sorted({*row.searched, *(seed for rung in plan.rungs for seed in rung.seeds)})


def _text(plan: Plan, trial: Trial, rung: int) -> str:
    return f"{100 * (trial.mean(rung) or 0):.2f} % ({_head(plan, rung)})"


def _overrides(row: PlannedRow, trial: Trial) -> dict[str, Value]:
    """What the row fixes and the trial sets, by full names in TOML's spelling."""
    flat: dict[str, Any] = {}
    for name, value in row.fixed.items():
        if isinstance(value, dict):
            flat |= {f"{_key(row.method)}.{option}": each for option, each in value.items()}
        else:
            flat[name] = value
    for name, value in as_overrides(trial.sets).items():
        flat |= {f"{_key(name)}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def compare_command(plan: Plan, winners: str | Path = WINNERS) -> str:
    """How the winners in a file are put to the test, with what all rows had in common."""
    words = ["fedproc", "compare", "--variants", str(winners), "--seeds", "SEEDS"]
    for name, value in plan.given.items():
        if name in ("val_fraction", "rounds", "seed", "eval_every"):
            continue
        for path, each in (
            [(f"{name}.{k}", v) for k, v in value.items()] if isinstance(value, dict) else [(name, value)]
        ):
            word = "DIR" if name == "data_dir" else str(each[0] if isinstance(each, (list, tuple)) else each)
            words += [flag(path), word.lower() if isinstance(each, bool) else word]
    return shlex.join([*words, "--rounds", str(plan.rungs[-1].rounds)])


def _key(name: str) -> str:
    return name if name.replace("-", "").replace("_", "").isalnum() else json.dumps(name)


def _toml(value: Value) -> str:
    return json.dumps(value)  # words, numbers and booleans are written alike


def _written(swept: Swept, measured: dict[str, dict[str, Importance | None]]) -> dict[str, Any]:
    plan = swept.plan
    rungs = [{"rounds": r.rounds, "seeds": list(r.seeds), "keep": r.keep} for r in plan.rungs]
    rows = {}
    for label, trials in swept.rows.items():
        best = winner(trials)
        found = {
            name: None if one is None else {"gap": one.gap, "explained": one.share, "p": one.p}
            for name, one in measured[label].items()
        }
        rows[label] = {
            "winner": best.number if best is not None else None,
            "trials": [trial.written() for trial in trials],
            "options": found,
        }
    return {"score": plan.score, "rungs": rungs, "rows": rows}
