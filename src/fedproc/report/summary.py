"""A comparison in two tables: accuracies over seeds, and paired differences to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedproc.comparison.compare import Comparison
from fedproc.comparison.own_accuracy import FINAL
from fedproc.paper.published import Published
from fedproc.report.tables import Number, Shown, Table
from fedproc.statistics import Paired, over_settings

Spread = tuple[float, float | None] | None
NUMBERS = {
    "final": "final_accuracy",
    "last 10": "last10_accuracy",
    "best": "best_accuracy",
    "nearest prototype": "final_prototype_accuracy",
}
MORE = {"prototype, last 10": "last10_prototype_accuracy"}  # where there is room
KINDS = {
    "final": "final_accuracy",
    "last 10": "last10_accuracy",
    "prototype, final": "final_prototype_accuracy",
    "prototype, last 10": "last10_prototype_accuracy",
}
SOMETIMES = {  # where a row has it
    "own": FINAL,
    "CCVR, sampled": "final_ccvr_accuracy",
    "CCVR, lda": "final_lda_accuracy",
}
OF_OWN = (
    "own: accuracy to be expected on images with the classes of each client's own data, mean over clients, of models "
    "of their own"
)
OF_GLOBAL = "; without such models, of the global one: "

KEPT = "kept, test"  # of the model that validation chose

HEADS = ("difference", "95 % interval", "p", "detectable", "verdict")


def accuracies(
    comparison: Comparison, published: Mapping[str, Published] | None = None, everything: bool = False
) -> Table:
    """Mean and sample deviation over seeds, in per cent; the final round first, next to what was published."""
    prefix = comparison.prefix
    numbers = {**NUMBERS, **(MORE if everything else {}), **_sometimes(comparison)}
    kept = any(row.by_seed("test_accuracy") for row in comparison.rows)
    private = any(row.by_seed("epsilon") for row in comparison.rows)
    rows = []
    for row in comparison.rows:
        ended = {"diverged": row.diverged, "failed": row.failed}
        words = "".join(f" ({len(seeds)} {how})" for how, seeds in ended.items() if seeds)
        some = {how for how in ended if any(getattr(each, how) for each in comparison.rows)}
        more = {how: float(len(seeds)) for how, seeds in ended.items() if how in some}
        cells = [Shown(row.label), Shown(f"{len(row.runs)}{words}", len(row.runs), more)]
        cells += [_spread(words, row.spread(prefix + name), 100.0) for words, name in numbers.items()]
        cells += [_spread(KEPT, row.spread("test_accuracy"), 100.0)] if kept else []
        cells += [_spread("epsilon", row.spread("epsilon"), 1.0)] if private else []
        if published:
            theirs = published.get(row.label)
            text = Number(None, published=theirs.value, published_deviation=theirs.deviation).theirs if theirs else ""
            more = {"published deviation": theirs.deviation} if theirs and theirs.deviation is not None else {}
            cells.insert(3, Shown(text, theirs.value if theirs else None, more))
        rows.append([*cells, _spread("s per run", row.spread("seconds"), 1.0, 1)])
    heads = ["", "seeds", *numbers, *([KEPT] if kept else []), *(["epsilon"] if private else []), "s per run"]
    if published:
        heads.insert(3, "published")
    title = "accuracy, %: mean ± sample deviation over seeds" + (" (validation)" if prefix else "")
    return Table(title, heads, rows, _of_own(comparison), best=list(numbers) if _same_seeds(comparison) else ())


def _sometimes(comparison: Comparison) -> dict[str, str]:
    """Kinds of accuracy that some row has and not all have to have."""
    return {words: name for words, name in SOMETIMES.items() if comparison.has(name)}


def _of_own(comparison: Comparison) -> str:
    """Whose models the own accuracies are of; nothing where there are none."""
    name = comparison.prefix + FINAL
    if not comparison.has(FINAL):
        return ""
    others = [row.label for row in comparison.rows if not row.has(name) and row.by_seed(name)]
    return f"{OF_OWN}{OF_GLOBAL if others else ''}{', '.join(others)}."


def _same_seeds(comparison: Comparison) -> bool:
    """Whether means can be compared: seeds differ in how hard they are."""
    return len({tuple(run.seed for run in row.runs) for row in comparison.rows}) == 1


def differences(comparison: Comparison, primary: Mapping[str, Paired] | None = None, declared: bool = True) -> Table:
    """Each row's paired difference to the reference, in points, with its interval and verdict. The final accuracies are
    the primary family, or a part of the larger one whose tests are given; undeclared, everything is exploratory.
    """
    kinds = {**KINDS, **_sometimes(comparison)}
    found = {words: comparison.paired(comparison.prefix + name) for words, name in kinds.items()}
    found["final"] = dict(primary or found["final"])
    rows = []
    for row in comparison.rows:
        for words, by_label in found.items():
            if row.label not in by_label:
                continue
            rows.append([Shown(row.label if words == "final" else ""), Shown(words), *_row(by_label[row.label])])
    title = _about(comparison.reference, list(found["final"].values()))
    named = {"difference": f"difference to {comparison.reference}"}
    return Table(title, ["", "accuracy", *HEADS], rows, DECLARED if declared else EXPLORATORY, named)


def means_over_settings(found: Sequence[tuple[str, Mapping[str, Paired]]]) -> Table | None:
    """Each row's mean difference over the settings that have it, all to one reference; None where no row has two."""
    rows = []
    labels = dict.fromkeys((reference, label) for reference, by_label in found for label in by_label)
    for reference, label in labels:
        settings = [by_label[label] for other, by_label in found if other == reference and label in by_label]
        one = over_settings(settings) if len(settings) > 1 else None
        if one is None or one.low is None:
            continue
        counts = [Shown(str(number), number) for number in (len(settings), len(one.seeds))]
        rows.append([Shown(label), Shown(reference), *counts, *_row(one)[:3]])
    if not rows:
        return None
    heads = ["", "to", "settings", "seeds", *HEADS[:2], "p"]
    title = "mean over settings of the difference in final accuracy, points; seed by seed, over seeds that all have"
    return Table(title, heads, rows, f"{EXPLORATORY} p is not corrected.")


def differences_by_column(found: Mapping[str, Mapping[str, Paired]], reference: str) -> Table:
    """The same for several columns of a table, each with its rows' differences to the reference."""
    rows = [[Shown(row), Shown(column), *_row(one)] for column, by_row in found.items() for row, one in by_row.items()]
    everything = [one for by_row in found.values() for one in by_row.values()]
    title = _about(reference, everything, " within a column")
    return Table(title, ["", "column", *HEADS], rows, named={"difference": f"difference to {reference}"})


DECLARED = (
    "Final accuracy is the primary family, with p corrected over its tests. The rest is exploratory: p is corrected "
    "within each kind of accuracy alone."
)
EXPLORATORY = "Exploratory: these are not the page's declared primary family."


def _about(reference: str, found: Sequence[Paired], where: str = "") -> str:
    counts = sorted({len(one.seeds) for one in found})
    over = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(*counts)
    return (
        f"difference to {reference} in points, paired over {over} seeds; p corrected by Holm{where}; `detectable`: "
        "smallest difference seen with 80 % power at Holm's strictest step, and its range as the deviation is uncertain"
    )


def _row(one: Paired) -> list[Shown]:
    """The cells under `HEADS`."""
    return [
        Shown(f"{100 * one.difference:+.2f}", 100 * one.difference),
        _interval(one),
        _p(one.corrected) if one.tested else Shown("-"),
        _detectable(one),
        Shown(one.verdict),
    ]


def _interval(one: Paired) -> Shown:
    if one.low is None or one.high is None:
        return Shown("-", more={"seeds": len(one.seeds)})
    ends = {"from": 100 * one.low, "to": 100 * one.high, "seeds": len(one.seeds)}
    return Shown(f"{100 * one.low:+.2f} to {100 * one.high:+.2f}", more=ends)


def _p(p: float) -> Shown:
    return Shown(f"{p:.3f}" if p >= 0.001 else "< 0.001", p)


def _detectable(one: Paired) -> Shown:
    if one.detectable is None:
        return Shown("-")
    text, more = f"{100 * one.detectable:.2f}", {}
    if one.detectable_low is not None and one.detectable_high is not None:
        text += f" ({100 * one.detectable_low:.2f} to {100 * one.detectable_high:.2f})"
        more = {"detectable from": 100 * one.detectable_low, "detectable to": 100 * one.detectable_high}
    return Shown(text, 100 * one.detectable, more)


def _spread(name: str, spread: Spread, scale: float, digits: int = 2) -> Shown:
    if spread is None:
        return Shown("-")
    mean, deviation = spread
    tail = "" if deviation is None else f" ± {scale * deviation:.{digits}f}"
    more = {} if deviation is None else {f"{name} deviation": scale * deviation}
    return Shown(f"{scale * mean:.{digits}f}{tail}", scale * mean, more)
