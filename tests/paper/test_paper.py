"""Every table and figure at the tiny scale: drawn, written, shared, skipped when done, imported."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import change_config
from PIL import Image

from fedproc import InputError
from fedproc.cli.commands import execute
from fedproc.paper import published
from fedproc.paper.exhibits import EXHIBITS, SCALES, Exhibit
from fedproc.paper.identity import index
from fedproc.report.contents import write_report
from fedproc.report.gather import gather
from fedproc.reproduction import tsne
from fedproc.reproduction.exhibits import Request, reproduce, slug
from fedproc.simulation.watching import Nobody, Watched


class Forbidden(Nobody):
    """Complains when anything runs."""

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        raise AssertionError("something ran that was done")


def request(name: str, out: Path, imported: dict[str, list[Path]] | None = None) -> Request:
    return Request(EXHIBITS[name], SCALES["tiny"], (0,), out, {"device": "cpu"}, imported or {})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All exhibits, in one folder."""
    out = tmp_path_factory.mktemp("paper")
    assert execute(["paper", "all", "--scale", "tiny", "--out", str(out), "--device", "cpu"]) == 0
    return out


@pytest.mark.parametrize("exhibit", [each for each in EXHIBITS.values() if each.name != "tsne"], ids=lambda e: e.name)
def test_every_exhibit_is_written_with_the_numbers_of_its_runs(made: Path, exhibit: Exhibit) -> None:
    folder = made / "tiny" / exhibit.name
    found = json.loads((folder / "exhibit.json").read_text())
    cells = exhibit.cells(SCALES["tiny"])
    assert [(cell["row"], cell["column"]) for cell in found["cells"]] == [(cell.row, cell.column) for cell in cells]
    for cell in found["cells"]:
        (run,) = found["runs"][f"{cell['row']} | {cell['column']}"]
        if exhibit.measure == "seconds":
            assert 0 < cell["mean"] < 600
        else:
            result = json.loads((folder / run / "result.json").read_text())
            assert cell["mean"] == pytest.approx(100 * result["final_accuracy"])
    with (folder / "table.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(cells)
    assert (folder / "table.md").read_text().count("| " + cells[0].row) == 1
    assert r"\begin{tabular}" in (folder / "table.tex").read_text()
    if exhibit.figure:
        assert Image.open(folder / "figure.png").size[0] > 500
        assert "</svg>" in (folder / "figure.svg").read_text()


def test_several_seeds_give_paired_differences_to_fedproc(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["paper", "alpha", "--scale", "tiny", "--device", "cpu", "--out", str(tmp_path)]
    assert execute([*words, "--seeds", "0", "1"]) == 0
    assert "difference to fedproc in points, paired over 2 seeds" in " ".join(capsys.readouterr().out.split())
    folder = tmp_path / "tiny" / "alpha"
    found = json.loads((folder / "exhibit.json").read_text())
    (column,) = {cell["column"] for cell in found["cells"]}

    def finals(row: str) -> list[float]:
        results = [folder / run / "result.json" for run in found["runs"][f"{row} | {column}"]]
        return [json.loads(result.read_text())["final_accuracy"] for result in results]

    assert [one["row"] for one in found["differences"]] == ["two-stage", "alpha = 0.5"]
    for one in found["differences"]:
        expected = np.mean(np.subtract(finals(one["row"]), finals("fedproc")))
        assert one["column"] == column and one["difference"] == pytest.approx(expected)
        assert one["low"] is None and one["high"] is None  # two seeds are too few for an interval
    with (folder / "differences.csv").open() as file:
        told = [float(row["difference to fedproc"]) for row in csv.DictReader(file)]
    assert told == pytest.approx([100 * one["difference"] for one in found["differences"]])
    page = write_report([folder], tmp_path / "page").read_text()
    assert "Holm within a column" in page and (tmp_path / "page/tables/tiny-alpha-differences.csv").exists()
    assert execute([*words, "--seeds", "0"]) == 0
    assert not list(folder.glob("differences.*"))


@pytest.mark.slow
def test_local_epochs_are_compared_on_the_same_seeds_and_what_nobody_has_is_left_out(tmp_path: Path) -> None:
    asked = Request(EXHIBITS["epochs"], SCALES["tiny"], (0, 1), tmp_path, {"device": "cpu"}, {})
    whole = reproduce(asked).grid.numbers
    assert {number.seeds for number in whole.values()} == {2}
    cells = asked.exhibit.cells(asked.scale)
    homes = {(cell.row, cell.column): list(asked.experiments(cell)) for cell in cells}
    first, *_, other = whole
    for gone in (homes[first][1], *homes[other]):
        shutil.rmtree(gone)
    found = reproduce(asked, Forbidden(), only_done=True).grid.numbers
    assert set(found) == set(whole) - {other}
    for place, number in found.items():
        result = json.loads((homes[place][0] / "result.json").read_text())
        assert (number.seeds, number.mean) == (1, pytest.approx(100 * result["final_accuracy"]))
    shutil.rmtree(homes[list(whole)[1]][0])
    with pytest.raises(InputError, match=r"epochs: .* has no seed that is done in all its cells"):
        reproduce(asked, Forbidden(), only_done=True)


def test_all_that_is_done_is_shown_and_the_rest_is_named(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["paper", "--scale", "tiny", "--only-done", "--out", str(tmp_path), "--device", "cpu"]
    shutil.copytree(made / "tiny" / "runs", tmp_path / "tiny" / "runs")
    assert execute([*words, "all"]) == 0
    shown = capsys.readouterr().out
    assert "time: 0 of 5 runs are done" in shown and "not done:" not in shown
    shutil.rmtree(next(iter(request("accuracy", tmp_path).wanted())))
    assert execute([*words, "accuracy"]) == 0
    assert "1 of 6 runs are not done: runs/fashion-mini-solo/seed-0" in capsys.readouterr().out
    assert {path.parent.name for path in tmp_path.glob("tiny/*/exhibit.json")} == set(EXHIBITS) - {"time"}
    with pytest.raises(InputError, match="time: 0 of 5 runs are done"):
        execute([*words, "time"])


def test_what_is_done_is_skipped_and_shared(made: Path) -> None:
    for name in EXHIBITS:
        reproduce(request(name, made), Forbidden())
    runs = {path.parent for path in (made / "tiny" / "runs").rglob("result.json")}
    wanted = {path for name, e in EXHIBITS.items() if e.measure != "seconds" for path in request(name, made).wanted()}
    assert runs == wanted and len(wanted) < sum(len(e.cells(SCALES["tiny"])) for e in EXHIBITS.values())


def test_finished_runs_from_elsewhere_are_imported(made: Path, tmp_path: Path) -> None:
    done = reproduce(request("accuracy", tmp_path, index([made])), Forbidden())
    there = json.loads((made / "tiny" / "accuracy" / "exhibit.json").read_text())["cells"]
    assert done.grid.json() == there
    with pytest.raises(InputError, match=r"import .*nowhere: no such folder"):
        index([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"import .*empty: no finished run in there"):
        index([tmp_path / "empty"])


def test_a_run_of_something_else_is_not_imported(made: Path, tmp_path: Path) -> None:
    other = SCALES["tiny"]
    changed = Request(EXHIBITS["accuracy"], other, (1,), tmp_path, {"device": "cpu"}, index([made]))
    assert all(changed.finished(path, each) is None for path, each in changed.wanted().items())


def test_a_run_of_something_else_in_the_runs_place_is_not_taken(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "tiny", tmp_path / "tiny")
    path, experiment = next(iter(request("accuracy", tmp_path).wanted().items()))
    assert request("accuracy", tmp_path).finished(path, experiment) is not None
    change_config(path / "config.json", lr=0.5)
    assert request("accuracy", tmp_path).finished(path, experiment) is None
    with pytest.raises(InputError, match=r"lr 0\.01: the run in .* has 0\.5; take that, another out"):
        reproduce(request("accuracy", tmp_path), Forbidden())


def test_of_several_imported_runs_one_that_has_what_is_needed_is_taken(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "tiny" / "runs", tmp_path / "bare", ignore=shutil.ignore_patterns("*.safetensors"))
    for folders in ([tmp_path / "bare", made], [made, tmp_path / "bare"]):
        reproduce(request("tsne", tmp_path / "out", index(folders)), Forbidden(), only_done=True)


def test_times_are_not_of_runs_beside_others(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "tiny" / "alone", tmp_path / "alone")
    asked = request("time", tmp_path / "out", index([tmp_path]))
    assert all(asked.finished(path, each) for path, each in asked.wanted().items())
    for path in tmp_path.rglob("environment.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "runs_at_once": 5}))
    assert not any(asked.finished(path, each) for path, each in asked.wanted().items())


def test_models_that_are_gone_are_named(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "tiny", tmp_path / "tiny")
    path = next(path for path, each in request("tsne", tmp_path).wanted().items() if each.method == "fedavg")
    (path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors: is gone, and the run is over; remove .* made again"):
        reproduce(request("tsne", tmp_path), Forbidden())


def test_the_page_finds_an_exhibits_runs_from_anywhere(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made.parent)
    reproduce(request("accuracy", tmp_path / "out", index([Path(made.name)])), Forbidden())
    monkeypatch.chdir("/")
    assert len(gather([tmp_path / "out"]).runs) == len(request("accuracy", made).wanted())
    shutil.copytree(tmp_path / "out", tmp_path / "deep" / "er" / "copy")
    text = write_report([tmp_path / "deep"], tmp_path / "page").read_text()
    assert "6 of the 6 runs behind it cannot be found any more" in text


def test_the_list_tells_what_is_done(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["paper", "list", "--scale", "tiny", "--out", str(made)]) == 0
    shown = capsys.readouterr().out
    assert "6 of 6" in shown and " 0 of" not in shown and all(name in shown for name in EXHIBITS)


def test_full_scale_is_the_papers() -> None:
    full = SCALES["full"]
    accuracy = {(cell.row, cell.column): cell for cell in EXHIBITS["accuracy"].cells(full)}
    assert accuracy["fedproc", "CIFAR-10"].published == published.Published(70.7, 0.3)
    assert accuracy["fedproc", "CIFAR-100, lr 0.1"].published == published.Published(74.6, 0.1)
    assert accuracy["fedproc", "CIFAR-100, lr 0.01"].given["lr"] == 0.01
    clients = {(cell.row, cell.column): cell for cell in EXHIBITS["clients"].cells(full)}
    sampled = clients["moon", "m = 100, T = 500, lr 0.1"]
    assert sampled.given["sample"] == 0.2 and sampled.published == published.Published(61.8)
    assert {cell.given["epochs"] for cell in EXHIBITS["epochs"].cells(full)} == {1, 5, 10, 20}
    time = {(cell.row, cell.column): cell.published for cell in EXHIBITS["time"].cells(full)}
    assert time["fedproc", "CIFAR-10"] == published.Published(11 * 60 + 57.0)
    assert (
        slug(clients["moon", "m = 50, T = 200, lr 0.1"].given, full)
        == "cifar100-moon-clients50-lr0.1-rounds200-sample1"
    )


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="not known"):
        execute(["paper", "nothing"])
    with pytest.raises(InputError, match="seeds 1 1: expected each seed once"):
        execute(["paper", "accuracy", "--seeds", "1", "1"])


def test_tsne_is_drawn_and_says_how_alike_clients_are(made: Path) -> None:
    folder = made / "tiny" / "tsne"
    found = json.loads((folder / "exhibit.json").read_text())
    numbers = {(cell["row"], cell["column"]): cell["mean"] for cell in found["cells"]}
    assert {row for row, _ in numbers} == {"solo", "fedavg", "fedproc"} and all(0 <= n <= 1 for n in numbers.values())
    # clients that started the round from one model are more alike than those that never met
    column = "client 1 with client 2"
    assert numbers["fedavg", column] > numbers["solo", column] and numbers["fedproc", column] > numbers["solo", column]
    assert Image.open(folder / "figure.png").size[0] > 1500
    assert Path(found["runs"]["fedproc"]).name == "seed-0"


def test_alignment_by_hand() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(200, 5))
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    assert tsne.alignment_of(one, 3 * one @ turn + 1) == pytest.approx(1)  # turned, scaled and moved: the same
    assert tsne.alignment_of(one, rng.normal(size=(200, 5))) < 0.1
    assert tsne.alignment_of(one, np.ones((200, 5))) == 0
