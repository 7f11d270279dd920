"""Tables in LaTeX: what is bold, how names are written, and that a LaTeX takes them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedproc.cli.commands import execute
from fedproc.comparison.compare import Comparison, Row
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.methods import METHODS, written
from fedproc.report.latex import escaped
from fedproc.report.summary import accuracies, differences
from fedproc.report.tables import Grid, Number, Shown, Table
from fedproc.simulation.drive import Run

ODD = r'a_b & 50 % #1 {x} $y$ ^~ \cmd <i> | [z] -- "q" `c`'


def row(label: str, *finals: float) -> Row:
    """Runs with these final accuracies, of seeds 0, 1, ..."""
    numbers = ("final", "last10", "best", "final_prototype", "last10_prototype")
    runs = [
        Run(
            Experiment(seed=seed),
            label,
            {"status": "finished", "seconds": 1.0, **{f"{name}_accuracy": value for name in numbers}},
            [],
            None,
        )
        for seed, value in enumerate(finals)
    ]
    return Row.of(label, runs)


def body(latex: str) -> dict[str, list[str]]:
    """The cells of each row after the heads."""
    lines = latex[latex.index(r"\midrule") : latex.index(r"\bottomrule")].splitlines()[1:]
    cells = [[cell.strip() for cell in line.removesuffix(r"\\").split(" & ")] for line in lines if "&" in line]
    return {first: others for first, *others in cells}


def test_the_best_mean_is_bold_and_methods_are_written_as_in_papers() -> None:
    rows = [row("fedavg", 0.70, 0.72), row("scaffold", 0.74, 0.76), row("fedproc-sharp", 0.60, 0.62)]
    latex = accuracies(Comparison(rows, None, "fedavg")).latex()
    found = body(latex)
    assert list(found) == ["FedAvg", "SCAFFOLD", "fedproc-sharp"]
    assert found["SCAFFOLD"][:2] == ["2", r"\textbf{75.00} $\pm$ 1.41"]
    assert found["FedAvg"][:2] == ["2", r"71.00 $\pm$ 1.41"]
    assert found["FedAvg"][-1] == r"1.0 $\pm$ 0.0"  # seconds are not a contest
    assert r"\begin{tabular}{lrrrrrr}" in latex and "bold: the highest mean" in latex
    assert not re.search(r"\\hline|^[^%]*\|", latex, re.M)


def test_equal_means_are_both_bold() -> None:
    found = body(accuracies(Comparison([row("fedavg", 0.70004), row("moon", 0.70001)], None, "fedavg")).latex())
    assert found["FedAvg"][1] == found["MOON"][1] == r"\textbf{70.00}"


def test_nothing_is_bold_where_seeds_differ() -> None:
    uneven = accuracies(Comparison([row("fedavg", 0.7, 0.72), row("fedproc", 0.9)], None, "fedavg")).latex()
    assert "textbf" not in uneven and "bold" not in uneven
    numbers = {("fedavg", "A"): Number(70, 1, seeds=2), ("fedproc", "A"): Number(71, 1, seeds=3)}
    assert "textbf" not in Grid("t", numbers).table().latex()


def test_a_grid_has_the_best_of_each_column_in_bold_and_times_none() -> None:
    values = {"fedavg": (70.0, 41.0), "fedproc": (71.0, None)}
    numbers = {(r, c): Number(v, 1.0, seeds=3) for r, pair in values.items() for c, v in zip("AB", pair, strict=True)}
    found = body(Grid("t", numbers, digits=1).table().latex())
    assert found == {"FedAvg": [r"70.0 $\pm$ 1.0", r"41.0 $\pm$ 1.0"], "FedProc": [r"\textbf{71.0} $\pm$ 1.0", "-"]}
    assert "textbf" not in Grid("t", numbers, "The median round of one run").table().latex()


def test_every_method_has_a_written_name() -> None:
    names = {name: written(name) for name in METHODS}
    assert len(set(names.values())) == len(METHODS)
    assert names["fedadam"] == "FedAdam" and names["moon"] == "MOON" and written("my-own") == "my-own"


def test_rows_of_one_method_stand_together() -> None:
    rows = [
        row(label, *values)
        for label, values in {"fedavg": (0.7, 0.72), "moon": (0.6, 0.64), "fpl": (0.5, 0.53)}.items()
    ]
    latex = differences(Comparison(rows, None, "fedavg")).latex()
    assert latex.count(r"\addlinespace") == 1  # before the second of two rows
    assert re.search(r"^MOON & final & \$-\$9\.00 ", latex, re.M)


def test_columns_are_chosen_by_their_heads(compared: Path, tmp_path: Path) -> None:
    words = ["report", str(compared), "--out", str(tmp_path), "--columns"]
    assert execute([*words, "nearest prototype", "final"]) == 0
    latex = (tmp_path / "tables" / "setting-0-accuracy.tex").read_text(encoding="utf-8")
    assert r" & nearest prototype & final \\" in latex
    assert "seeds," in (tmp_path / "tables" / "setting-0-accuracy.csv").read_text(encoding="utf-8").splitlines()[0]
    with pytest.raises(InputError, match="fnal: no such column; there are: seeds; final; last 10"):
        execute([*words, "fnal"])


def test_texts_are_escaped() -> None:
    assert escaped("a_b & 50 %") == r"a\_b \& 50 \%"
    assert escaped("--x -0.5 CIFAR-10") == r"-{}-x $-$0.5 CIFAR-10"


def test_a_latex_takes_every_table(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None or not _has("booktabs.sty"):
        if os.environ.get("FEDPROC_LATEX") == "required":
            pytest.fail("no pdflatex with booktabs here, which FEDPROC_LATEX=required asks for")
        pytest.skip("no pdflatex with booktabs here")
    rows = [row("fedavg", 0.70, 0.72), row("scaffold+fedproc", 0.74, 0.76), row(ODD, 0.60, 0.65)]
    comparison = Comparison(rows, None, "fedavg")
    odd = Table(ODD, ["", ODD], [[Shown(ODD), Shown("-0.5", -0.5)]], note="two\nlines", best=[ODD])
    for place, table in enumerate((accuracies(comparison), differences(comparison), odd)):
        (tmp_path / f"{place}.tex").write_text(table.latex(), encoding="utf-8")
    inputs = "\n\n".join(rf"\input{{{place}}}" for place in range(3))
    text = "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n"
    (tmp_path / "paper.tex").write_text(f"{text}{inputs}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout


def _has(file: str) -> bool:
    return bool(subprocess.run(["kpsewhich", file], capture_output=True).stdout.strip())
