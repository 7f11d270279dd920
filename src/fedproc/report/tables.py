"""A table of numbers, ours beside the published, as Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """Mean and sample deviation over seeds, and what was published."""

    mean: float | None
    deviation: float | None = None
    seeds: int = 0
    diverged: int = 0
    published: float | None = None
    published_deviation: float | None = None

    @property
    def ours(self) -> str:
        if self.mean is None:
            return "diverged" if self.diverged else "-"
        return _spread(self.mean, self.deviation) + (f" ({self.diverged} diverged)" if self.diverged else "")

    @property
    def theirs(self) -> str:
        return "" if self.published is None else _spread(self.published, self.published_deviation)


@dataclass(frozen=True)
class Grid:
    """Numbers by row and column, in the order they were put in."""

    title: str
    numbers: Mapping[tuple[str, str], Number]
    of_one_run: str = ""  # what a number is where it is not a mean over seeds

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.numbers))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.numbers))

    def cells(self) -> list[list[str]]:
        """The text of each cell: ours, and the published number in brackets."""
        return [[self._cell(self.numbers.get((row, column))) for column in self.columns] for row in self.rows]

    def _cell(self, number: Number | None) -> str:
        if number is None:
            return ""
        return f"{number.ours} [{number.theirs}]" if number.theirs else number.ours

    def note(self) -> str:
        """What stands in a cell."""
        seeds = sorted({number.seeds for number in self.numbers.values()})
        count = f"{seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
        bracket = "; [published]" if any(number.theirs for number in self.numbers.values()) else ""
        over = f"Mean ± sample deviation over {count} seed{'s' if seeds != [1] else ''}"
        return f"{self.of_one_run or over}{bracket}."

    def _heads(self) -> list[str]:
        return ["", *(column.replace("|", ", E = ") for column in self.columns)]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self._heads()), _line(["---"] * (len(self.columns) + 1))]
        lines += [_line([row, *cells]) for row, cells in zip(self.rows, self.cells(), strict=True)]
        return "\n".join([*lines, "", self.note(), ""])

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", "column", *asdict(Number(None))])
        for (row, column), number in self.numbers.items():
            writer.writerow([row, column, *("" if v is None else v for v in asdict(number).values())])
        return text.getvalue()

    def latex(self) -> str:
        end = r" \\"
        lines = [r"\begin{tabular}{l" + "r" * len(self.columns) + "}", r"\hline"]
        lines += [" & ".join(map(_escaped, self._heads())) + end, r"\hline"]
        for row, cells in zip(self.rows, self.cells(), strict=True):
            lines.append(" & ".join(map(_escaped, [row, *cells])) + end)
        return "\n".join([f"% {self.title}", f"% {self.note()}", *lines, r"\hline", r"\end{tabular}", ""])

    def json(self) -> list[dict[str, Any]]:
        return [{"row": row, "column": column, **asdict(number)} for (row, column), number in self.numbers.items()]


def _spread(mean: float, deviation: float | None) -> str:
    digits = 1 if abs(mean) >= 10 else 2 if abs(mean) >= 1 else 3
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    for found, put in (("_", r"\_"), ("%", r"\%"), ("±", r"$\pm$"), ("[", "{["), ("]", "]}")):
        text = text.replace(found, put)
    return text
