#!/usr/bin/env python3
"""Print every table of docs/results/leaderboard/README.md, of the runs that are kept there.

    python scripts/leaderboard_tables.py [--write] [--draw] [--folder DIR]

--write puts them into the page in place of those that are there (of a new one its heads and an empty line are a place)
and prints the others, and the main ones' shorter form into docs/results/README.md and README.md; --draw draws
forest.svg and .png, of each beta differences.png and curves.png, and differences.png of each further setting. The
primary family is all rows at both betas.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import leaderboard
from leaderboard import BETAS, FOLDER, ROWS, TUNED, Tests, in_words

from fedproc.comparison.compare import Comparison, Row, curves, rows_in
from fedproc.figures.curves import draw_curves
from fedproc.figures.differences import draw_differences
from fedproc.figures.forest import draw_forest
from fedproc.figures.style import COLOURS
from fedproc.report.summary import HEADS, differences
from fedproc.runs.saved import SavedRun
from fedproc.statistics import Paired

SHORT = (0, 1, 2, 3, 4, 7)  # columns of the main table that stand on other pages
SHORTER = re.compile(r"^\| tuned \| seeds \|.*\n\|[-|]+\n(?P<rows>(?:\|.*\n)+)", re.M)
BETA = re.compile(r"[Bb]eta (0\.\d)")
PAGES = (FOLDER.parent / "README.md", FOLDER.parent.parent.parent / "README.md")
FEW = 5, "fedavg", "fedproc"  # README's rows: so many of the first ones, and these
BESIDE = {
    "nearest prototype": "final_prototype_accuracy",
    "CCVR, sampled": "final_ccvr_accuracy",
    "CCVR, lda": "final_lda_accuracy",
}
SPANS = {"11 to 50": (11, 50), "51 to 100": (51, 100), "91 to 100": (91, 100), "100": (100, 100)}
CEILINGS = {"central": "central training", "central-cosine": "the same, cosine", "fedma": "matched averaging"}
FURTHER = {
    f"{name}-beta{beta}": f"{words}, beta {beta}"
    for name, words in {"cifar10-clients100": "100 clients, 10 a round", "cifar10-images2000": "2,000 images"}.items()
    for beta in BETAS
}


@dataclass(frozen=True)
class Printed:
    """A table: under which head of the page it stands (none: anywhere), its heads and its rows."""

    under: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def head(self) -> str:
        return _line(self.heads)

    @property
    def text(self) -> str:
        return "\n".join([self.head, "|" + "---|" * len(self.heads), *map(_line, self.rows)])

    def columns(self, chosen: Sequence[int]) -> Printed:
        rows = tuple(tuple(row[place] for place in chosen) for row in self.rows)
        return Printed(self.under, tuple(self.heads[place] for place in chosen), rows)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main_table(under: str, found: Comparison, tests: Mapping[str, Paired]) -> Printed:
    """Final accuracies and the differences to tuned FedAvg."""
    told = {row[0].text: [cell.text for cell in row[2:]] for row in differences(found, tests).rows if row[0].text}
    rows = []
    for row in found.rows:
        cells = told.get(row.label, [""] * len(HEADS))
        rows.append((_plain(row), str(len(row.runs)), spread(row, "final_accuracy"), *cells))
    heads = ("tuned", "seeds", "final", "to FedAvg", "95 % interval", "p, Holm", "detectable", "verdict")
    return Printed(under, heads, tuple(rows))


def exploratory_table(under: str, found: Comparison) -> Printed:
    rows = [(_plain(row), *(spread(row, name) for name in BESIDE.values())) for row in found.rows]
    return Printed(under, ("tuned", *BESIDE), tuple(rows))


def winners_table(under: str, beta: str, folder: Path = FOLDER) -> Printed:
    """What won each search, and its validation accuracy in both rungs."""
    rows = []
    for label, (values, scores) in leaderboard.won(beta, folder).items():
        common = [str(values.get(name, "-")) for name in ("lr", "lr_schedule", "calibrate")]
        own = [f"{name.partition('.')[2].replace('_', ' ')} {value}" for name, value in values.items() if "." in name]
        rows.append((label, *common, ", ".join(own), *(f"{100 * score:.2f}" for score in scores)))
    heads = ("won", "learning rate", "schedule", "calibrate", "its own", "validation, T = 50", "T = 100")
    return Printed(under, heads, tuple(rows))


def missing_table(under: str, beta: str, folder: Path = FOLDER) -> Printed:
    """The rows that were tried at fewer points of the shared options than FedAvg, and at which not."""
    rows = [
        (ROWS[row], str(8 - len(points)), "; ".join(", ".join(map(str, point)) for point in points))
        for row, points in leaderboard.missing_points(beta, folder).items()
    ]
    return Printed(under, ("row", "shared points, of 8", "not tried: learning rate, schedule, calibrate"), tuple(rows))


def left_out_table(under: str, beta: str, folder: Path = FOLDER) -> Printed:
    """What rows come to at the point that their search left out, beside their best trial with as many rounds."""
    best = {}
    for path in sorted((folder / leaderboard.setting(beta)).glob("search*/ranking.json")):
        for label, row in json.loads(path.read_text(encoding="utf-8"))["rows"].items():
            scores = [trial["scores"][0]["100"] for trial in row["trials"] if trial["scores"]]
            best[label] = max(100 * score for score in scores if score is not None)  # None: it diverged
    rows = []
    for label, runs in rows_in(folder / leaderboard.setting(beta) / "left-out").items():
        (run,) = runs
        row = label.removesuffix(leaderboard.MORE)
        rows.append((ROWS[row], f"{100 * run.result['val_final_accuracy']:.2f}", f"{best[row]:.2f}"))
    return Printed(under, ("at 0.02, cosine, 1.0", "validation, T = 50", "the best of its eight trials"), tuple(rows))


def means_table(under: str, tests: Tests) -> Printed:
    """The mean over both betas, seed by seed, beside each beta's difference."""
    rows = []
    for label, one in leaderboard.means(tests).items():
        each = [f"{100 * tests[beta, label].difference:+.2f}" for beta in BETAS]
        rows.append((label.removesuffix(TUNED), str(len(one.seeds)), *each, *_interval(one)))
    heads = ("over both betas", "seeds", *(f"beta {beta}" for beta in BETAS), "mean", "95 % interval")
    return Printed(under, heads, tuple(rows))


def anchors_table(under: str, folder: Path = FOLDER) -> Printed:
    """The same two runs of each sitting, the first of all before."""
    home = folder / leaderboard.setting("0.1")
    homes = [folder.parent / "cifar10-beta0.1" / "runs", *sorted(home.glob("anchors*"))]
    rows = []
    for method in ("fedavg", "fedproc"):
        of = [_seed_0(found[method]) for place in homes if method in (found := rows_in(place))]
        curves_ = [{record["round"]: 100 * record["test_accuracy"] for record in run.metrics} for run in of]
        cells = [", ".join(_mean(curve, *span) for curve in curves_) for span in SPANS.values()]
        rows.append((f"{ROWS[method]}, then and now", *cells))
    return Printed(under, ("test accuracy, %, mean over rounds", *SPANS), tuple(rows))


def _mean(curve: Mapping[int, float], first: int, last: int) -> str:
    values = [curve[t] for t in range(first, last + 1) if t in curve]
    return f"{statistics.fmean(values):.2f}" if len(values) == last - first + 1 else "-"


def _seed_0(runs: Sequence[SavedRun]) -> SavedRun:
    return next(run for run in runs if run.seed == 0)


def ceiling_table(under: str, folder: Path = FOLDER) -> Printed:
    rows = []
    for home in sorted((folder / "ceiling").glob("beta*")):
        for label, runs in rows_in(home).items():
            row = Row.of(label, runs)
            where = "all images" if label.startswith("central") else f"beta {home.name.removeprefix('beta')}"
            rows.append((CEILINGS.get(label, label), where, str(len(row.runs)), spread(row, "final_accuracy")))
    return Printed(under, ("untuned", "partition", "seeds", "final"), tuple(rows))


def spread(row: Row, name: str) -> str:
    values = [100 * value for value in row.by_seed(name).values()]
    if not values:
        return "-"
    return f"{statistics.fmean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def _plain(row: Row) -> str:
    return row.label.removesuffix(TUNED)


def _interval(one: Paired) -> tuple[str, str]:
    if one.low is None or one.high is None:
        return f"{100 * one.difference:+.2f}", "-"
    return f"{100 * one.difference:+.2f}", f"{100 * one.low:+.2f} to {100 * one.high:+.2f}"


def further(folder: Path = FOLDER) -> dict[str, Comparison]:
    """The settings in which the best rows were run once more, by folder."""
    return {name: one for name in FURTHER if (one := leaderboard.compared(folder / name)) is not None}


def tables(folder: Path = FOLDER) -> list[Printed]:
    """All there are, in the order of the page."""
    found = leaderboard.comparisons(folder)
    tests = leaderboard.primary(found)
    made = []
    for beta, each in found.items():
        under = f"## Beta {beta}"
        made.append(main_table(under, each, leaderboard.of_beta(tests, beta)))
        made += [exploratory_table(under, each), winners_table(under, beta, folder)]
        made += [missing_table("", beta, folder), left_out_table(under, beta, folder)]
    made += [means_table("## Both betas", tests), ceiling_table("## The ceiling", folder)]
    for name, each in further(folder).items():
        made.append(main_table(f"## {FURTHER[name]}", each, each.paired("final_accuracy")))
    made.append(anchors_table("", folder))
    return [table for table in made if table.rows]


# the page


def section(text: str, head: str) -> tuple[int, int]:
    """From where to where the page's section of that head goes; nowhere: -1."""
    if not head:
        return 0, len(text)
    start = f"\n{text}".find(f"\n{head}\n")
    end = text.find("\n## ", start + 1)
    return start, len(text) if end < 0 else end


def standing(text: str, table: Printed) -> tuple[int, int]:
    """From where to where the page has a table with these heads in its section; nowhere: -1."""
    first, last = section(text, table.under)
    at = text.find(f"{table.head}\n", max(first, 0), last) if first >= 0 else -1
    return at, text.find("\n\n", at) if "\n\n" in text[at:] else len(text.rstrip("\n"))


def written(text: str, made: Sequence[Printed]) -> tuple[str, list[Printed]]:
    """The page with these tables, and those that it has no place for."""
    left = []
    for table in made:
        at, end = standing(text, table)
        if at < 0:
            left.append(table)
        else:
            text = text[:at] + table.text + text[end:]
    return text, left


def elsewhere(text: str, made: Sequence[Printed], few: bool = False) -> str:
    """Another page with the main tables' shorter form in place of its own, each of the beta that was named last before
    it; of `few` rows alone.
    """
    for match in reversed([*SHORTER.finditer(text)]):
        beta = beta_before(text, match.start())
        found = next(table for table in made if table.under == f"## Beta {beta}" and table.heads[0] == "tuned")
        all_rows = found.columns(SHORT).rows
        shown = [row for n, row in enumerate(all_rows) if not few or n < FEW[0] or row[0] in FEW[1:]]
        rows = "\n".join(map(_line, shown))
        text = f"{text[: match.start('rows')]}{rows}\n{text[match.end() :]}"
    return text


def beta_before(text: str, at: int) -> str:
    return str(BETA.findall(text[:at])[-1])


# pictures


def forest(tests: Tests) -> dict[str, dict[str, Paired]]:
    """The lines of the forest plot, in words, under their heads; the highest first."""
    groups: dict[str, Mapping[str, Paired]] = {f"beta {beta}": leaderboard.of_beta(tests, beta) for beta in BETAS}
    groups["mean over both"] = leaderboard.means(tests)
    return {
        head: {in_words(label): one for label, one in sorted(lines.items(), key=lambda item: -item[1].difference)}
        for head, lines in groups.items()
        if lines
    }


def drawn_rows(found: Comparison) -> list[str]:
    """As many rows as there are colours: FedAvg, FedProc and the best of the others, the best first."""
    fixed = [row.label for row in found.rows if _plain(row) in ("fedavg", "fedproc")]
    others = [row.label for row in found.rows if row.label not in fixed][: len(COLOURS) - len(fixed)]
    return [row.label for row in found.rows if row.label in (*fixed, *others)]


def draw(folder: Path = FOLDER) -> list[Path]:
    found = leaderboard.comparisons(folder)
    tests = leaderboard.primary(found)
    made: dict[Path, Any] = {}
    for beta, each in found.items():
        home = folder / leaderboard.setting(beta)
        of = forest({key: one for key, one in tests.items() if key[0] == beta})[f"beta {beta}"]
        made[home / "differences.png"] = draw_differences(of, "tuned FedAvg")
        by_row = curves(each)
        made[home / "curves.png"] = draw_curves({in_words(label): by_row[label] for label in drawn_rows(each)})
    for name, each in further(folder).items():
        of = {in_words(label): one for label, one in each.paired("final_accuracy").items()}
        made[folder / name / "differences.png"] = draw_differences(of, "tuned FedAvg")
    plot = draw_forest(forest(tests), {}, "each tuned row", "tuned FedAvg", COLOURS[0])
    made |= {folder / f"forest.{kind}": plot for kind in ("svg", "png")}
    for path, picture in made.items():
        picture.save(path, path.suffix.removeprefix("."))
    return list(made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    parser.add_argument("--draw", action="store_true", help="draw the pictures")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the leaderboard; default: that of the docs")
    given = parser.parse_args()
    made = tables(given.folder)
    if given.write:
        for page in PAGES if given.folder == FOLDER else ():
            short = elsewhere(page.read_text(encoding="utf-8"), made, few=page == PAGES[-1])
            page.write_text(short, encoding="utf-8")
        page = given.folder / "README.md"
        text, made = written(page.read_text(encoding="utf-8"), made)
        page.write_text(text, encoding="utf-8")
        print(f"{page}: written; tables without a place there: {len(made)}\n")
    for table in made:
        print(f"{table.under or '(anywhere)'}\n\n{table.text}\n")
    tests = leaderboard.primary(leaderboard.comparisons(given.folder))
    print(f"{len(tests)} of the family's {leaderboard.DECLARED} tests")
    for path in draw(given.folder) if given.draw else ():
        print(path)


if __name__ == "__main__":
    main()
