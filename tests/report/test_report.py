"""The page's numbers are those of the run folders, it stands by itself, and bad folders are named."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import change_config
from PIL import Image

from fedproc import InputError, RunError
from fedproc.cli.commands import execute
from fedproc.comparison.compare import Comparison, Row
from fedproc.figures.curves import draw_curves
from fedproc.figures.style import COLOURS, SVG, lines, picture
from fedproc.report.contents import write_report
from fedproc.report.families import families_of
from fedproc.report.gather import Group, gather
from fedproc.report.heatmaps import draw_confusions
from fedproc.report.panels import half_width
from fedproc.report.summary import DECLARED, EXPLORATORY
from fedproc.report.tables import Grid, Number, Shown, Table
from fedproc.runs.schema import content_checksum

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
    table = next(t for t in found.tables if len(t.get("fedproc", [])) == 7)  # seeds and six numbers
    for method in ("fedavg", "fedproc"):
        names = ["final_accuracy", "last10_accuracy", "best_accuracy"]
        names += ["final_prototype_accuracy", "last10_prototype_accuracy", "seconds"]
        means = [statistics.fmean(results(compared / method, name)) for name in names]
        assert table[method] == pytest.approx([2, *(100 * mean for mean in means[:-1]), means[-1]])


def test_every_table_and_figure_lies_beside_the_page(page: Path, compared: Path) -> None:
    for name in FIGURES:
        assert Image.open(page.parent / "figures" / f"{name}.png").size[0] > 400
        assert ElementTree.parse(page.parent / "figures" / f"{name}.svg").getroot().tag == f"{{{SVG}}}svg"
    with (page.parent / "tables" / "setting-0-accuracy.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    final = statistics.fmean(results(compared / "fedproc", "final_accuracy"))
    assert float(rows["fedproc"]["final"]) == pytest.approx(100 * final)
    deviation = statistics.stdev(results(compared / "fedproc", "final_accuracy"))
    assert float(rows["fedproc"]["final deviation"]) == pytest.approx(100 * deviation)
    with (page.parent / "tables" / "setting-0-differences.csv").open() as file:
        differences = list(csv.DictReader(file))
    assert [row["row"] for row in differences] == ["fedproc"] * 4
    for row in differences:
        assert row["verdict"] == "2 seeds, too few" and row["95 % interval"] == ""
    between = final - statistics.fmean(results(compared / "fedavg", "final_accuracy"))
    assert float(differences[0]["difference to fedavg"]) == pytest.approx(100 * between)
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
    assert "<pre>" in text and "Python 3." in text


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


def test_variants_go_by_what_they_differ_in(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "fedproc", tmp_path / "plain")
    shutil.copytree(compared / "fedproc", tmp_path / "sharp")
    for path in (tmp_path / "sharp").rglob("config.json"):
        config = json.loads(path.read_text())
        change_config(path, fedproc={**config["fedproc"], "tau": 0.2})
    (group,) = gather([tmp_path]).groups
    assert [row.label for row in group.comparison.rows] == ["fedproc tau 0.2", "fedproc tau 1.0"]
    assert [len(row.runs) for row in group.comparison.rows] == [2, 2]


def test_a_comparison_keeps_its_rows_whatever_they_vary(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    (tmp_path / "cmp" / "fedproc").rename(tmp_path / "cmp" / "calibrated")
    for path in (tmp_path / "cmp" / "calibrated").rglob("config.json"):
        change_config(path, method="fedavg", calibrate=1.0)
    content = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    content["rows"]["calibrated"] = content["rows"].pop("fedproc")
    (tmp_path / "cmp" / "comparison.json").write_text(json.dumps(content))
    (group,) = gather([tmp_path / "cmp"], "calibrated").groups
    assert [row.label for row in group.comparison.rows] == ["fedavg", "calibrated"]
    assert group.comparison.reference == "calibrated" and "calibrate" not in group.title


def test_long_names_leave_their_cells_room() -> None:
    names = [f"class {k} with a name that goes on and on and on" for k in range(6)]
    made = draw_confusions({"fedavg": np.eye(6, dtype=np.int64)}, names)
    made.figure.canvas.draw()
    (panel,) = (axes for axes in made.figure.axes if axes.axison)
    assert panel.get_window_extent().width > 0.4 * made.figure.bbox.width
    assert panel.get_xlabel() == "predicted class" and all(len(t.get_text()) <= 24 for t in panel.get_xticklabels())
    assert any(names[0] in text for texts in made.texts.values() for text in texts)


def test_runs_of_other_settings_are_not_one_row(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    path = sorted((tmp_path / "cmp" / "fedavg").rglob("config.json"))[-1]
    config = json.loads(path.read_text())
    change_config(path, lr=0.5)
    (group,) = gather([tmp_path / "cmp"]).groups
    labels = [row.label for row in group.comparison.rows]
    assert labels == [f"fedavg (lr {config['lr']})", "fedavg (lr 0.5)", "fedproc"]
    path.unlink()
    with pytest.raises(InputError, match=r"config.json is missing beside metrics.jsonl; move it away"):
        gather([tmp_path / "cmp"])


def test_a_partition_file_for_each_seed_is_one_setting(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")

    def dealt(label: str, by_seed: str) -> list[tuple[str, int]]:
        """The rows where each seed of this one has the file with that letter."""
        for seed, letter in enumerate(by_seed):
            path = tmp_path / "cmp" / label / f"seed-{seed}" / "config.json"
            change_config(path, partition="file", partition_file_sha256=letter)
        (group,) = gather([tmp_path / "cmp"]).groups
        return [(row.label, len(row.runs)) for row in group.comparison.rows if row.label.startswith(label)]

    assert dealt("fedavg", "ab") == [("fedavg", 2)] and dealt("fedproc", "ab") == [("fedproc", 2)]
    shutil.copytree(tmp_path / "cmp" / "fedavg" / "seed-1", tmp_path / "cmp" / "fedavg" / "seed-2")
    change_config(tmp_path / "cmp" / "fedavg" / "seed-2" / "config.json", seed=2, data_seed=2, model_seed=2)
    assert dealt("fedavg", "abc") == [("fedavg", 3)]
    assert dealt("fedavg", "aab") == [
        ("fedavg (partition file sha256 a)", 2),
        ("fedavg (partition file sha256 b)", 1),
    ]


def test_rows_of_earlier_commands_stay_in_their_comparison(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    content = json.loads((tmp_path / "cmp" / "comparison.json").read_text())
    content["rows"].pop("fedavg")  # as after a second command that asked for fedproc alone
    (tmp_path / "cmp" / "comparison.json").write_text(json.dumps(content))
    (group,) = gather([tmp_path / "cmp"]).groups
    assert [row.label for row in group.comparison.rows] == ["fedproc", "fedavg"]
    assert group.comparison.reference == "fedavg"


def test_two_comparisons_of_one_setting_are_not_mixed(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "a")
    shutil.copytree(compared, tmp_path / "b")
    groups = gather([tmp_path]).groups
    assert [group.title[:3] for group in groups] == ["a: ", "b: "]
    assert [[len(row.runs) for row in group.comparison.rows] for group in groups] == [[2, 2], [2, 2]]


def test_copies_do_not_count_as_seeds(compared: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(compared / "fedavg" / "seed-0", tmp_path / name)
    found = gather([tmp_path])
    assert [len(row.runs) for row in found.groups[0].comparison.rows] == [1]
    assert found.copies == {tmp_path / "two": tmp_path / "one"}
    assert "a copy of" in write_report([tmp_path], tmp_path / "report").read_text(encoding="utf-8")


def test_other_images_under_the_same_name_stand_apart(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "fedavg", tmp_path / "runs")
    path = tmp_path / "runs" / "seed-1" / "config.json"
    change_config(path, fingerprint="other")
    assert len(gather([tmp_path]).groups) == 2


def test_own_images_that_the_seed_splits_are_one_setting(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "fedavg", tmp_path / "runs")
    for path in sorted(tmp_path.rglob("config.json")):
        config = json.loads(path.read_text())
        change_config(path, data="photos", fingerprint=f"split by {config['data_seed']}")
    (group,) = gather([tmp_path]).groups
    assert [len(row.runs) for row in group.comparison.rows] == [2]
    shutil.copytree(tmp_path / "runs" / "seed-1", tmp_path / "runs" / "again")
    other = tmp_path / "runs" / "again" / "config.json"
    change_config(other, fingerprint="other photos")
    assert len(gather([tmp_path]).groups) == 3  # one seed with two kinds of data: the name is not enough


def test_a_finished_run_is_no_copy_of_an_unfinished_one(compared: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(compared / "fedavg" / "seed-0", tmp_path / name)
    (tmp_path / "a" / "result.json").unlink()
    found = gather([tmp_path])
    assert found.copies == {tmp_path / "a": tmp_path / "b"} and len(found.groups[0].comparison.rows) == 1


def test_differences_are_to_the_reference_of_the_comparison(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    path = tmp_path / "cmp" / "comparison.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "reference": "fedproc"}))
    assert gather([tmp_path]).groups[0].comparison.reference == "fedproc"
    assert gather([tmp_path], "fedavg").groups[0].comparison.reference == "fedavg"


def test_the_reference_is_a_row_that_is_there(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    for path in (tmp_path / "cmp" / "fedavg").rglob("result.json"):
        path.unlink()
    (group,) = gather([tmp_path / "cmp"]).groups
    assert group.comparison.reference == "fedproc" and not group.comparison.paired("final_accuracy")
    text = write_report([tmp_path / "cmp"], tmp_path / "report").read_text(encoding="utf-8")
    assert "fedavg (under way), round 2" in text


def test_what_is_being_done_is_told(compared: Path, tmp_path: Path) -> None:
    heard: list[str] = []
    write_report([compared], tmp_path, progress=heard.append)
    assert heard[0] == "reading runs" and heard[1].startswith("drawing 1 of 1: ")
    figures = len(list((tmp_path / "figures").glob("*.png")))
    assert heard[2:] == [f"writing figure {place} of {figures}" for place in range(1, figures + 1)]


def test_a_second_report_leaves_nothing_of_the_first(compared: Path, exhibits: Path, tmp_path: Path) -> None:
    write_report([compared, exhibits / "tiny" / "rounds"], tmp_path / "report")
    assert (tmp_path / "report" / "figures" / "tiny-rounds.png").exists()
    (tmp_path / "report" / "tables" / "mine.csv").write_text("kept")
    write_report([compared], tmp_path / "report")
    assert not (tmp_path / "report" / "figures" / "tiny-rounds.png").exists()
    assert (tmp_path / "report" / "tables" / "mine.csv").exists()


def test_a_file_in_the_way_is_named(compared: Path, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("mine")
    with pytest.raises(InputError, match="report: a file is in the way"):
        write_report([compared], tmp_path / "report")


def test_a_folder_that_cannot_be_written_is_named(compared: Path) -> None:
    with pytest.raises(RunError, match=r"/proc/fedproc/report/tables: cannot be written: No such file or directory"):
        write_report([compared], Path("/proc/fedproc/report"))


def test_odd_names_are_shown_as_they_are(compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a[/b] $x$ <i> & |"
    shutil.copytree(compared, folder)
    assert execute(["report", str(folder)]) == 0
    assert "a[/b] $x$ <i> & |" in capsys.readouterr().out
    text = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "&lt;i&gt; &amp; |" in text and "<i>" not in text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("metrics.jsonl", "[1]\n", "line 1: expected an object, got [1]"),
        (
            "metrics.jsonl",
            '{"round": 1}\n{"round": 2, "test_accuracy": "x"}\n',
            "line 2: test_accuracy x: expected a number",
        ),
        ("metrics.jsonl", '{"round": 1, "seconds": 3}\n', "line 1: seconds 3: expected an object"),
        ("confusion.jsonl", '{"round": 1}\n', "confusion.jsonl: line 1: confusion is missing"),
        ("partition.json", '{"class_names": 3}', "partition.json: class_names 3: expected a list"),
        ("partition.json", '{"class_names": ["a"], "counts": [[1], 2]}', "counts.1 2: expected a list"),
        ("partition.json", '{"class_names": ["a"], "counts": [[1, 2]]}', "expected the names of 2 classes"),
        ("config.json", '{"method": "fedavg", "fingerprint": "", "data_seed": 0}', "config.json: data is missing"),
        ("config.json", "{", "config.json: cannot be read"),
        ("result.json", "[]", "result.json: expected a JSON object"),
    ],
)
def test_damages_are_named(compared: Path, tmp_path: Path, name: str, content: str, words: str) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    (tmp_path / "cmp" / "fedavg" / "seed-0" / name).write_text(content)
    with pytest.raises(InputError, match=re.escape(words)):
        write_report([tmp_path / "cmp"], tmp_path / "page")


@pytest.mark.parametrize(("name", "value"), [("seed", "a"), ("rounds", None)])
def test_configs_of_no_sense_are_named(compared: Path, tmp_path: Path, name: str, value: object) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    path = tmp_path / "cmp" / "fedavg" / "seed-0" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    shown = "null" if value is None else value
    words = f"config.json: {name} {shown}: expected a whole number; move .*seed-0 away to have the page without it"
    with pytest.raises(InputError, match=words):
        gather([tmp_path / "cmp"])


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x00", "\x9b", "\n", "\uffff", "\ud800"])
@pytest.mark.parametrize("field", ["class_names", "client_names"])
def test_names_that_no_figure_can_hold_are_refused(compared: Path, tmp_path: Path, field: str, sign: str) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    for path in (tmp_path / "cmp").rglob("partition.json"):
        held = json.loads(path.read_text())
        names = held["class_names"] if field == "class_names" else [str(k) for k in range(len(held["counts"]))]
        path.write_text(json.dumps({**held, field: [f"a{sign}b", *names[1:]]}))
    with pytest.raises(InputError, match=r"partition\.json: .*expected (a name without control characters|JSON)"):
        write_report([tmp_path / "cmp"], tmp_path / "page")


def test_no_control_characters_of_strangers_reach_the_page(compared: Path, tmp_path: Path) -> None:
    odd = "x\x1b]0;owned\x07\x00\x9b\x7f\uffff"
    shutil.copytree(compared, tmp_path / "cmp")
    (tmp_path / "cmp" / "fedproc").rename(tmp_path / "cmp" / "x\x1b[2J\x9b")  # a row's label
    for path in (tmp_path / "cmp").rglob("environment.json"):
        said = json.loads(path.read_text())
        said |= {"device": odd, "commit": odd, "packages": {odd: odd}, "command": ["fedproc", odd], "started": odd}
        path.write_text(json.dumps(said))
    for path in (tmp_path / "cmp" / "fedavg").rglob("config.json"):
        change_config(path, method=odd, data=odd, network=odd, fingerprint=odd)
    failed = tmp_path / "cmp" / "fedavg" / "seed-0" / "result.json"
    whole = {"status": "failed", "round": 1, "reason": odd, "label": odd}
    failed.write_text(json.dumps(whole))
    (tmp_path / "cmp" / "comparison.json").write_text(json.dumps({"rows": {odd: {}}, "reference": odd}))
    write_report([tmp_path / "cmp"], tmp_path / "page")
    seen = 0
    for path in (tmp_path / "page").rglob("*"):
        if path.suffix in (".html", ".svg", ".csv", ".md", ".tex"):
            text = path.read_text(encoding="utf-8")
            assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\uffff]", text), path
            seen += "owned" in text
            if path.suffix == ".svg":
                ElementTree.fromstring(text)
    assert seen > 1


def test_config_files_of_others_are_left_alone(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    (tmp_path / "cmp" / "elsewhere").mkdir()
    (tmp_path / "cmp" / "elsewhere" / "config.json").write_text("no JSON")
    assert len(gather([tmp_path / "cmp"]).runs) == 4


def test_settings_stand_apart(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared / "fedavg", tmp_path / "one")
    shutil.copytree(compared / "fedavg", tmp_path / "two")
    for path in (tmp_path / "two").rglob("config.json"):
        change_config(path, batch_size=7)
    groups = gather([tmp_path]).groups
    assert [group.title.rsplit(", ", 1)[1] for group in groups] == ["batch size 128", "batch size 7"]


def test_titles_say_what_is_not_the_default(compared: Path, tmp_path: Path) -> None:
    for name, value in (("plain", 0.0), ("calibrated", 1.0)):
        shutil.copytree(compared, tmp_path / name / "runs")
        for path in (tmp_path / name).rglob("config.json"):
            change_config(path, calibrate=value)
    calibrated, plain = (group.title for group in gather([tmp_path]).groups)
    assert plain.startswith("plain: ") and "calibrate" not in plain
    assert calibrated == plain.replace("plain", "calibrated") + ", calibrate 1.0"


def test_titles_know_fields_that_follow_others_and_fields_of_other_versions(compared: Path, tmp_path: Path) -> None:
    for name, given in (("a", {"augment": "none", "later": 1}), ("b", {"augment": "crop-flip", "later": 2})):
        shutil.copytree(compared, tmp_path / name)
        for path in (tmp_path / name).rglob("config.json"):
            change_config(path, **given)
    titles = [group.title.split("simple-cnn, ")[1] for group in gather([tmp_path]).groups]
    assert titles == ["augment none, later 1", "augment crop-flip, later 2"]


def test_a_curve_that_ends_early_is_told(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    for path in (tmp_path / "cmp" / "fedavg").rglob("metrics.jsonl"):
        path.write_text(path.read_text().splitlines()[0] + "\n")
        result = path.parent / "result.json"
        first = json.loads(path.read_text())["chain"]
        shorter = {**json.loads(result.read_text()), "rounds": 1, "metrics_checksum": first}
        result.write_text(json.dumps({**shorter, "checksum": content_checksum(shorter)}))
    text = write_report([tmp_path / "cmp"], tmp_path / "report").read_text(encoding="utf-8")
    assert "Ended earlier: fedavg after round 1." in text
    assert "Ended earlier" not in write_report([compared], tmp_path / "whole").read_text(encoding="utf-8")


@pytest.mark.parametrize(("made", "words"), [(False, "no such folder"), (True, "no run folder")])
def test_folders_without_runs_are_named(tmp_path: Path, made: bool, words: str) -> None:
    folder = tmp_path / "nothing"
    if made:
        folder.mkdir()
    with pytest.raises(InputError, match=rf"nothing: {words}"):
        write_report([folder], tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_an_unknown_reference_is_refused(compared: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reference moon: expected one of fedavg, fedproc"):
        write_report([compared], tmp_path, reference="moon")


def test_a_damaged_file_is_named(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    (tmp_path / "cmp" / "fedavg" / "seed-0" / "metrics.jsonl").write_text("{]\n")
    with pytest.raises(InputError, match=r"seed-0.metrics.jsonl: line 1 is not JSON"):
        gather([tmp_path / "cmp"])


def test_a_picture_says_when_a_value_has_no_shape() -> None:
    made = picture(3, 2)
    panel = made.figure.subplots()
    made.points(panel, [1, 2], [3, 4], "#000000", ["only one"])
    with pytest.raises(ValueError, match="2 shapes were drawn for 1 values"):
        _ = made.svg


def test_methods_keep_their_colours() -> None:
    alone, among = lines(["fedproc"]), lines(["moon", "mine", "fedproc"])
    assert alone["fedproc"] == among["fedproc"] and len(set(among.values())) == 3


def test_more_lines_than_colours_are_told_apart_by_dashes_and_named_beside_the_panels() -> None:
    labels = ["fedavg", "fedproc", *(f"variant-{place}" for place in range(2 * len(COLOURS)))]
    assert len(set(lines(labels).values())) == len(labels)
    drawn = draw_curves({label: [[{"round": t, "test_accuracy": t / 9} for t in range(3)]] for label in labels})
    assert [text.get_text() for text in drawn.figure.legends[0].get_texts()] == labels
    assert not any(panel.get_legend() for panel in drawn.figure.axes)


def test_a_legend_of_many_lines_is_whole() -> None:
    runs = [[{"round": t, "test_accuracy": 0.1 * t} for t in (1, 2, 3)]]
    root = ElementTree.fromstring(draw_curves({f"row-{n:02d}": runs for n in range(40)}).svg)
    height = float(root.get("viewBox", "").split()[3])
    places = {text.text: float(text.get("y", "nan")) for text in root.iter(f"{{{SVG}}}text")}
    assert all(0 < places[f"row-{n:02d}"] < height for n in range(40))


def test_cells_are_escaped() -> None:
    table = Table("a_b", ["", "x & y"], [[Shown("<i>"), Shown("50 %", 0.5)]])
    assert "&lt;i&gt;" in table.html() and 'data-value="0.5"' in table.html()
    assert r"50 \%" in table.latex() and r"x \& y" in table.latex() and "$<$i$>$" in table.latex()
    minus = Table("", ["", "CIFAR-10"], [[Shown("a"), Shown("-0.51 to -0.2")], [Shown("b"), Shown("-")]]).latex()
    assert "$-$0.51 to $-$0.2" in minus and "CIFAR-10" in minus and "b & - " in minus
    assert Table("", ["", "a|b"], []).markdown().splitlines()[2] == r"|  | a\|b |"
    assert table.turned().heads == ["", "<i>"] and table.turned().rows[0][0].text == "x & y"


def test_a_grid_of_uneven_seeds_tells_how_many_each_cell_has() -> None:
    numbers = {
        ("solo", "A"): Number(8.9, 0.31, seeds=3, published=22.3, published_deviation=1.0),
        ("fedavg", "A"): Number(68.32, 1.94, seeds=10),
        ("moon", "A"): Number(None),
    }
    grid = Grid("t", numbers, digits=1)
    assert [row[1].text for row in grid.table().rows] == ["8.9 ± 0.3 (3) [22.3 ± 1.0]", "68.3 ± 1.9 (10)", "-"]
    assert "(count)" in grid.note()
    even = Grid("t", {key: Number(68.3, 1.9, seeds=5) for key in numbers})
    assert even.table().rows[0][1].text == "68.3 ± 1.9" and "over 5 seeds" in even.note()
    assert grid.formats()["csv"].splitlines()[1] == "solo,A,8.9,0.31,3,0,22.3,1.0"


def test_bars_are_intervals_of_the_mean_or_the_range_of_two() -> None:
    two, five = [60.0, 64.0], [60.0, 61.0, 62.0, 63.0, 64.0]
    assert half_width(Number(62, statistics.stdev(two), seeds=2)) == pytest.approx(2)
    expected = 2.776445 * statistics.stdev(five) / 5**0.5
    assert half_width(Number(62, statistics.stdev(five), seeds=5)) == pytest.approx(expected, rel=1e-6)
    assert half_width(Number(62, seeds=1)) == 0


def settings_of(compared: Path, folder: Path) -> list[Path]:
    """The comparison with three seeds, in two settings."""
    for name, beta in (("one", 0.5), ("two", 0.3)):
        shutil.copytree(compared, folder / name)
        for label in ("fedavg", "fedproc"):
            third = folder / name / label / "seed-2"
            shutil.copytree(folder / name / label / "seed-1", third)
            for home, seed in ((folder / name / label / f"seed-{seed}", seed) for seed in range(3)):
                change_config(home / "config.json", beta=beta, seed=seed, data_seed=seed, model_seed=seed)
    return [folder / "one", folder / "two"]


def test_a_setting_that_was_run_again_counts_once(compared: Path, tmp_path: Path) -> None:
    folders = settings_of(compared, tmp_path)
    shutil.copytree(tmp_path / "one", tmp_path / "again")
    for label in ("fedavg", "fedproc"):
        shutil.rmtree(tmp_path / "again" / label / "seed-2")
    page = write_report([*folders, tmp_path / "again"], tmp_path / "page").read_text(encoding="utf-8")
    assert re.search(r"counted once: \d\. again repeats \d\. one \(fedproc\)\.", page)
    rows = list(csv.reader((tmp_path / "page" / "tables" / "settings.csv").read_text().splitlines()))
    (row,) = (dict(zip(rows[0], row, strict=True)) for row in rows[1:])
    assert (row["settings"], row["seeds"]) == ("2", "3")


def test_settings_whose_seeds_have_other_partition_files_are_two(compared: Path, tmp_path: Path) -> None:
    one, two = settings_of(compared, tmp_path)
    for folder in (one, two):
        for path in folder.rglob("config.json"):
            seed = json.loads(path.read_text(encoding="utf-8"))["seed"]
            change_config(path, beta=0.5, partition="file", partition_file_sha256=f"{folder.name}-{seed}")
    assert "counted once" not in write_report([one, two], tmp_path / "page").read_text(encoding="utf-8")
    for path in two.rglob("config.json"):
        seed = json.loads(path.read_text(encoding="utf-8"))["seed"]
        change_config(path, partition_file_sha256=f"one-{seed}")
    page = write_report([one, two], tmp_path / "again").read_text(encoding="utf-8")
    assert "Over settings" not in page  # there is one alone


def test_one_family_is_primary_and_the_rest_exploratory(compared: Path, tmp_path: Path) -> None:
    folders = settings_of(compared, tmp_path)
    declared, exploratory = (escape(text) for text in (DECLARED, EXPLORATORY))
    none = write_report(folders, tmp_path / "none").read_text(encoding="utf-8")
    assert declared not in none and "Over settings" in none
    forest = (tmp_path / "none" / "figures" / "settings-0.svg").read_text(encoding="utf-8")
    finals = [results(tmp_path / "one" / label, "final_accuracy") for label in ("fedproc", "fedavg")]
    mean = 100 * (statistics.fmean(finals[0]) - statistics.fmean(finals[1]))
    titles = re.findall(r"<title>([^<]*, 3 seeds)</title>", forest)
    assert [title.split(" (")[0] for title in titles] == [f"{n}: {mean:+.2f}" for n in ("1. one", "2. two", "mean")]
    first = write_report(folders, tmp_path / "first", primary=["one"]).read_text(encoding="utf-8")
    assert first.count(declared) == 1 and exploratory in first
    with pytest.raises(InputError, match="primary three: expected one of one, two"):
        write_report(folders, tmp_path / "none", primary=["three"])


@dataclass
class Known:
    """A run of which the final accuracy is known."""

    seed: int
    result: dict[str, Any]
    metrics: list[dict[str, Any]] = field(default_factory=list)


def test_a_primary_family_spans_settings() -> None:
    def group(name: str, finals: dict[str, list[float]]) -> Group:
        rows = [
            Row.of(label, [Known(seed, {"status": "finished", "final_accuracy": v}) for seed, v in enumerate(values)])
            for label, values in finals.items()
        ]
        return Group(name, [], {}, Comparison(rows, None, "fedavg"), {}, name)

    one = group("one", {"fedavg": [0.6, 0.62, 0.64], "fedproc": [0.61, 0.64, 0.65]})
    two = group("two", {"fedavg": [0.5, 0.52, 0.54], "fedproc": [0.53, 0.54, 0.57], "moon": [0.51, 0.52, 0.53]})
    alone = {name: g.comparison.paired("final_accuracy") for name, g in (("one", one), ("two", two))}
    assert families_of([one], ()) == {0: alone["one"]} and families_of([one, two], ()) == {}
    assert families_of([one, two], ["two"]) == {1: alone["two"]}
    both = families_of([one, two], ["one", "two"])
    p = sorted(one.p for found in both.values() for one in found.values())
    least = min((found["fedproc"] for found in both.values()), key=lambda one: one.p)
    assert p[0] == least.p and least.corrected == pytest.approx(3 * p[0])
    wider, before = both[0]["fedproc"].detectable, alone["one"]["fedproc"].detectable
    assert wider is not None and before is not None and wider > before
