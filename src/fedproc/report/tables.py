"""Tables as Markdown, CSV, LaTeX and HTML, and grids of our numbers next to the published ones."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any

from fedproc.cells import safe_cell
from fedproc.errors import InputError
from fedproc.report.latex import tabular


@dataclass(frozen=True)
class Shown:
    """A cell: its text, the exact number behind it in the unit of its column, and further numbers of the text, which
    have separate columns in a CSV file.
    """

    text: str
    value: float | None = None
    more: Mapping[str, float] = field(default_factory=dict)

    def html(self) -> str:
        value = "" if self.value is None else f' data-value="{self.value!r}"'
        return f"<td{value}>{escape(self.text)}</td>"


@dataclass(frozen=True)
class Table:
    """Rows of cells under heads; the first column names the row. `named`: other heads for the CSV file, where
    no title explains them. `best`: heads of columns of means that can be compared, higher ones being better.
    """

    title: str
    heads: list[str]
    rows: list[list[Shown]]
    note: str = ""
    named: Mapping[str, str] = field(default_factory=dict)
    best: Sequence[str] = ()

    def turned(self) -> Table:
        """Columns as rows."""
        heads = [self.heads[0], *(row[0].text for row in self.rows)]
        rows = [[Shown(head), *(row[at] for row in self.rows)] for at, head in enumerate(self.heads) if at]
        return Table(self.title, heads, rows, self.note, self.named)

    def without(self, head: str) -> Table:
        """Without a column."""
        at = self.heads.index(head)
        rows = [[*row[:at], *row[at + 1 :]] for row in self.rows]
        return replace(self, heads=[*self.heads[:at], *self.heads[at + 1 :]], rows=rows)

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.heads), _line(["---"] * len(self.heads))]
        lines += [_line([cell.text for cell in row]) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def csv(self) -> str:
        """Exact numbers, empty where there is none; every row has its name."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        extra = [
            list(dict.fromkeys(name for row in self.rows for name in row[at].more)) for at in range(len(self.heads))
        ]
        heads = [self.named.get(head, head or "row") for head in self.heads]
        writer.writerow([safe_cell(name) for head, more in zip(heads, extra, strict=True) for name in (head, *more)])
        name = ""
        for row in self.rows:
            name = row[0].text or name
            cells: list[str | float] = [safe_cell(name)]
            for at, one in enumerate(row):
                if at:
                    cells.append(one.value if one.value is not None else safe_cell(one.text) if one.text != "-" else "")
                cells += [one.more.get(each, "") for each in extra[at]]
            writer.writerow(cells)
        return text.getvalue()

    def latex(self) -> str:
        """Ready for \\input; the highest mean of each column of `best` in bold."""
        rows = [[cell.text for cell in row] for row in self.rows]
        note = "bold: the highest mean of a column\n" if self.best else ""
        return tabular(self.heads, rows, self._highest(), f"{self.title}\n{self.note}\n{note}")

    def _highest(self) -> set[tuple[int, int]]:
        found = set()
        for at in (at for at, head in enumerate(self.heads) if head in self.best):
            known = {place: row[at].text for place, row in enumerate(self.rows) if row[at].value is not None}
            means = {place: float(text.split()[0]) for place, text in known.items()}
            if len(means) > 1:
                found |= {(place, at) for place, mean in means.items() if mean == max(means.values())}
        return found

    def chosen(self, columns: Sequence[str]) -> Table:
        """The first column and these, in this order."""
        others = self.heads[1:]
        for name in columns:
            if name not in others:
                raise InputError(f"--columns {name}: no such column; there are: {'; '.join(others)}")
        places = [0, *(1 + others.index(name) for name in columns)]
        rows = [[row[at] for at in places] for row in self.rows]
        return replace(self, heads=[self.heads[at] for at in places], rows=rows)

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return self.html()

    def formats(self) -> dict[str, str]:
        """File contents by extension."""
        return {"csv": self.csv(), "md": self.markdown(), "tex": self.latex()}

    def html(self, caption: bool = True) -> str:
        """The exact numbers are in `data-value`."""
        heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in self.heads)
        lines = []
        for first, *others in self.rows:
            cells = "".join(cell.html() for cell in others)
            lines.append(f'<tr><th scope="row">{escape(first.text)}</th>{cells}</tr>')
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        body = "\n".join(lines)
        title = f'<p class="note">{escape(self.title)}</p>' if caption else ""
        return (
            f'{title}<div class="wide"><table aria-label="{escape(self.title)}"><thead><tr>{heads}</tr></thead>'
            f"<tbody>\n{body}\n</tbody></table></div>{note}"
        )


@dataclass(frozen=True)
class Number:
    """Mean and sample deviation over seeds, and what was published."""

    mean: float | None
    deviation: float | None = None
    seeds: int = 0
    diverged: int = 0
    published: float | None = None
    published_deviation: float | None = None

    def text(self, digits: int | None = None) -> str:
        """Mean and deviation, with `digits` after the point or as many as suit the size."""
        if self.mean is None:
            return "diverged" if self.diverged else "-"
        return _spread(self.mean, self.deviation, digits) + (f" ({self.diverged} diverged)" if self.diverged else "")

    @property
    def theirs(self) -> str:
        """The published number as printed."""
        if self.published is None:
            return ""
        value = f"{self.published:g}"
        digits = len(value.partition(".")[2])
        return value + ("" if self.published_deviation is None else f" ± {self.published_deviation:.{digits}f}")


@dataclass(frozen=True)
class Grid:
    """Numbers by row and column, in the order of insertion; `digits` after the point, or what suits each."""

    title: str
    numbers: Mapping[tuple[str, str], Number]
    of_one_run: str = ""  # what a number is where it is not a mean over seeds
    digits: int | None = None

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.numbers))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.numbers))

    def table(self) -> Table:
        """Ours, and the published number in brackets."""
        rows = [[Shown(r), *(self._cell(self.numbers.get((r, c))) for c in self.columns)] for r in self.rows]
        heads = [column.replace("|", ", E = ") for column in self.columns]
        comparable = not self.of_one_run and len(self._seeds) == 1
        return Table(self.title, ["", *heads], rows, self.note(), best=heads if comparable else ())

    def _cell(self, number: Number | None) -> Shown:
        if number is None:
            return Shown("")
        ours = number.text(self.digits)
        ours += f" ({number.seeds})" if number.seeds and len(self._seeds) > 1 else ""
        return Shown(f"{ours} [{number.theirs}]" if number.theirs else ours, number.mean)

    @property
    def _seeds(self) -> list[int]:
        return sorted({number.seeds for number in self.numbers.values() if number.seeds})

    def note(self) -> str:
        """What a cell shows."""
        seeds = self._seeds or [0]
        over = "One seed" if seeds == [1] else f"Mean ± sample deviation over {seeds[0]} seeds"
        if len(seeds) > 1:
            over = "Mean ± sample deviation over seeds (count); compare only cells with the same seeds"
        bracket = "; [published]" if any(number.theirs for number in self.numbers.values()) else ""
        return f"{self.of_one_run or over}{bracket}."

    def csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", "column", *asdict(Number(None))])
        for (row, column), number in self.numbers.items():
            writer.writerow(
                [safe_cell(row), safe_cell(column), *("" if v is None else v for v in asdict(number).values())]
            )
        return text.getvalue()

    def formats(self) -> dict[str, str]:
        """File contents by extension; the CSV has a column for every number of a cell."""
        return {**self.table().formats(), "csv": self.csv()}

    def json(self) -> list[dict[str, Any]]:
        return [{"row": row, "column": column, **asdict(number)} for (row, column), number in self.numbers.items()]


def _spread(mean: float, deviation: float | None, digits: int | None = None) -> str:
    if digits is None:
        digits = 1 if abs(mean) >= 10 else 2 if abs(mean) >= 1 else 3
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
