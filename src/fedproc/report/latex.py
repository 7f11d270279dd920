"""Tables as papers have them: booktabs, methods' names as they are written there, the best of a column in bold.

A file is ready for \\input: a tabular without a float, for which `\\usepackage{booktabs}` is all that is needed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedproc.methods import written

SIGNS = str.maketrans(
    {**{sign: f"\\{sign}" for sign in "&#$_%{}"}, **{sign: f"${sign}$" for sign in "<>|"}}
    | {"±": r"$\pm$", "[": "{[", "]": "]}", "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\~{}"}
    | {"`": r"\textasciigrave{}", "−": "$-$", "–": "--", "…": r"\dots{}"}
)
NUMBER = re.compile(r"[-+]?[\d.,]+")


def escaped(text: str) -> str:
    """Any text, as LaTeX prints it; a minus and no hyphen before a number."""
    line = re.sub(r"\s+", " ", text).translate(SIGNS)
    plain = re.sub("-(?=-)", "-\0", line).replace("\0", "{}")  # two hyphens are no dash
    return re.sub(r"(?<!\S)-(?=\d)", "$-$", plain)


def bold(text: str) -> str:
    """A cell whose number, without the deviation, is bold."""
    found = NUMBER.match(text)
    if found is None:
        return escaped(text)
    return rf"\textbf{{{escaped(found[0])}}}{escaped(text[found.end() :])}"


def tabular(heads: Sequence[str], rows: Sequence[Sequence[str]], best: set[tuple[int, int]], about: str) -> str:
    """The first column names rows; `best` are the places (row, column) in bold, `about` goes into a comment."""
    ends = r" \\"
    numbers = [
        all(NUMBER.match(row[at].lstrip("< ")) or row[at] in ("", "-") for row in rows) for at in range(len(heads))
    ]
    grouped = any(not row[0] for row in rows)
    columns = "l" + "".join("r" if number else "l" for number in numbers[1:])
    lines = [*(f"% {line}" for line in about.splitlines() if line), r"% needs \usepackage{booktabs}"]
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", " & ".join(map(escaped, heads)) + ends, r"\midrule"]
    for place, row in enumerate(rows):
        if grouped and place and row[0]:
            lines.append(r"\addlinespace")
        named = [written(cell) if heads[at] in ("method", heads[0]) else cell for at, cell in enumerate(row)]
        cells = [bold(cell) if (place, at) in best else escaped(cell) for at, cell in enumerate(named)]
        lines.append(" & ".join(cells) + ends)
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])
