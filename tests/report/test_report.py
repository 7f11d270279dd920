"""The page's numbers are those of the run folders, it stands by itself, and bad folders are named."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from fedproc import InputError
from fedproc.report.gather import gather
from fedproc.report.page import write_report
from fedproc.report.style import SVG, colours, picture
from fedproc.report.tables import Shown, Table

FIGURES = ["tiny-tsne", "tiny-rounds", "tiny-epochs", *(f"setting-0-{k}" for k in ("curves", "classes", "partition"))]
FIGURES += ["setting-0-confusions", "setting-0-time"]


class Values(HTMLParser):
    """`data-value` of each cell, by table and row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[dict[str, list[float]]] = []
        self.references: list[str] = []
        self._row = ""
        self._naming = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.references += [v for n, v in attrs if n in ("src", "href", "xlink:href") and v]
        if tag == "table":
            self.tables.append({})
        self._naming = tag == "th" and given.get("scope") == "row"
        if tag == "td" and "data-value" in given:
            self.tables[-1].setdefault(self._row, []).append(float(given["data-value"] or "nan"))

    def handle_data(self, data: str) -> None:
        if self._naming:
            self._row, self._naming = data, False


def results(folder: Path, name: str) -> list[float]:
    return [json.loads(path.read_text())[name] for path in sorted(folder.rglob("result.json"))]


def test_the_pages_numbers_are_those_of_the_run_folders(page: Path, compared: Path) -> None:
    found = Values(page.read_text(encoding="utf-8"))
    table = next(t for t in found.tables if len(t.get("fedproc", [])) == 6)  # seeds and five numbers
    for method in ("fedavg", "fedproc"):
        names = ("final_accuracy", "last10_accuracy", "best_accuracy", "final_prototype_accuracy", "seconds")
        means = [statistics.fmean(results(compared / method, name)) for name in names]
        assert table[method] == pytest.approx([2, *means])


def test_every_table_and_figure_lies_beside_the_page(page: Path, compared: Path) -> None:
    for name in FIGURES:
        assert Image.open(page.parent / "figures" / f"{name}.png").size[0] > 400
        assert ElementTree.parse(page.parent / "figures" / f"{name}.svg").getroot().tag == f"{{{SVG}}}svg"
    with (page.parent / "tables" / "setting-0-accuracy.csv").open() as file:
        rows = {row[""]: row for row in csv.DictReader(file)}
    final = statistics.fmean(results(compared / "fedproc", "final_accuracy"))
    assert float(rows["fedproc"]["final"]) == pytest.approx(final)
    markdown = (page.parent / "tables" / "setting-0-accuracy.md").read_text()
    latex = (page.parent / "tables" / "setting-0-accuracy.tex").read_text()
    assert f"| {100 * final:.2f} ±" in markdown and rf"{100 * final:.2f} $\pm$" in latex


def test_curves_tell_every_round(page: Path, compared: Path) -> None:
    titles = re.findall(r"<title>(fedproc, round \d+: [^<]*)</title>", page.read_text(encoding="utf-8"))
    runs = [path.read_text().splitlines() for path in sorted((compared / "fedproc").rglob("metrics.jsonl"))]
    for number in (0, 1):
        values = [100 * json.loads(lines[number])["test_accuracy"] for lines in runs]
        ends = f"{statistics.fmean(values):.2f} % ({min(values):.2f} to {max(values):.2f}, 2 seeds)"
        assert f"fedproc, round {number + 1}: {ends}" in titles


def test_the_page_stands_by_itself(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for reference in Values(text).references:
        assert reference.startswith(("#", "data:", "figures/"))
    assert "@import" not in text and "url(http" not in text
    assert "<pre>fedproc " in text and "Python 3." in text


def test_names_of_parts_are_used_once(page: Path) -> None:
    names = re.findall(r'\bid="([^"]+)"', page.read_text(encoding="utf-8"))
    assert len(names) == len(set(names))


def test_runs_under_way_and_diverged_ones_are_told(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    (tmp_path / "cmp" / "fedproc" / "seed-1" / "result.json").unlink()
    gone = tmp_path / "cmp" / "fedavg" / "seed-1" / "result.json"
    gone.write_text(json.dumps({"method": "fedavg", "status": "diverged", "round": 2, "reason": "nan"}))
    found = gather([tmp_path / "cmp"])
    rows = {row.label: row for row in found.groups[0].comparison.rows}
    assert [run.seed for run in rows["fedproc"].runs] == [0] and rows["fedavg"].diverged == [1]
    text = write_report([tmp_path / "cmp"], tmp_path / "report").read_text(encoding="utf-8")
    assert "under way, 2 of 2 rounds" in text and "1 (1 diverged)" in text


def test_variants_go_by_their_folders(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "fedproc", tmp_path / "plain")
    shutil.copytree(compared / "fedproc", tmp_path / "sharp")
    for path in (tmp_path / "sharp").rglob("config.json"):
        config = json.loads(path.read_text())
        path.write_text(json.dumps({**config, "fedproc": {**config["fedproc"], "tau": 0.2}}))
    (group,) = gather([tmp_path]).groups
    assert [row.label for row in group.comparison.rows] == ["plain", "sharp"]
    assert group.comparison.reference == "plain"


def test_settings_stand_apart(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "fedavg", tmp_path / "one")
    shutil.copytree(compared / "fedavg", tmp_path / "two")
    for path in (tmp_path / "two").rglob("config.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "batch_size": 7}))
    groups = gather([tmp_path]).groups
    assert [group.title.rsplit(", ", 1)[1] for group in groups] == ["batch size 128", "batch size 7"]


@pytest.mark.parametrize(("made", "words"), [(False, "no such folder"), (True, "no run folder")])
def test_folders_without_runs_are_named(tmp_path: Path, made: bool, words: str) -> None:
    folder = tmp_path / "nothing"
    if made:
        folder.mkdir()
    with pytest.raises(InputError, match=rf"nothing: {words}"):
        write_report([folder], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_an_unknown_reference_is_refused(compared: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--reference moon: expected one of fedavg, fedproc"):
        write_report([compared], tmp_path, reference="moon")


def test_a_damaged_file_is_named(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    (tmp_path / "cmp" / "fedavg" / "seed-0" / "metrics.jsonl").write_text("{]\n")
    with pytest.raises(InputError, match=r"seed-0.metrics.jsonl: a line is not JSON"):
        gather([tmp_path / "cmp"])


def test_a_picture_says_when_a_value_has_no_shape() -> None:
    made = picture(3, 2)
    panel = made.figure.subplots()
    made.points(panel, [1, 2], [3, 4], "#000000", ["only one"])
    with pytest.raises(ValueError, match="2 shapes were drawn for 1 values"):
        _ = made.svg


def test_methods_keep_their_colours() -> None:
    alone, among = colours(["fedproc"]), colours(["moon", "mine", "fedproc"])
    assert alone["fedproc"] == among["fedproc"] and len(set(among.values())) == 3


def test_cells_are_escaped() -> None:
    table = Table("a_b", ["", "x & y"], [[Shown("<i>"), Shown("50 %", 0.5)]])
    assert "&lt;i&gt;" in table.html() and 'data-value="0.5"' in table.html()
    assert r"50 \%" in table.latex() and r"x \& y" in table.latex()
    assert table.turned().heads == ["", "<i>"] and table.turned().rows[0][0].text == "x & y"
