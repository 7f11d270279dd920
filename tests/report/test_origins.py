"""What the page and the terminal say of the commits that runs come from."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import SMALL, change_config

from fedproc.cli.commands import execute
from fedproc.report.origins import marked, of_rows, of_runs
from fedproc.runs.provenance import origins

A, B, HASH = "a" * 40, "b" * 40, "c" * 64
CLEAN = {"commit": A, "source_sha256": HASH}
CHANGED = {"commit": f"{B}-dirty", "source_sha256": "d" * 64}
UNKNOWN = {"commit": None, "source_sha256": HASH}
CONTINUED = {**CLEAN, "earlier": [CHANGED]}


def test_states_of_the_sources_in_words() -> None:
    assert [str(one) for one in origins(CONTINUED)] == ["bbbbbbb (changed tree)", "aaaaaaa"]
    assert [str(one) for one in origins(UNKNOWN)] == ["unknown commit (sources ccccccc)"]
    assert [str(one) for one in origins({})] == ["unknown commit"]


def test_only_one_clean_commit_goes_unmarked() -> None:
    assert not marked([CLEAN, CLEAN])
    for others in ([CHANGED], [UNKNOWN], [{}], [CONTINUED], [CLEAN, {**CLEAN, "commit": B, "source_sha256": "e"}]):
        assert marked(others)


def test_rows_with_the_same_commits_are_named_together() -> None:
    assert of_rows({"fedavg": [CLEAN], "fedproc": [CLEAN, CLEAN]}) == "Sources of all rows: aaaaaaa."
    found = of_rows({"fedavg": [CLEAN], "moon": [CLEAN], "fedproc": [CHANGED, CLEAN], "solo": []})
    assert found == "Sources: fedavg, moon: aaaaaaa; fedproc: bbbbbbb (changed tree), aaaaaaa."


def test_runs_are_counted_by_where_they_come_from() -> None:
    assert of_runs([CLEAN, CHANGED, CLEAN, UNKNOWN, CONTINUED]) == (
        "Sources: 2 of 5 runs are of clean commits: aaaaaaa; 1 of 5 runs are of trees with uncommitted changes: "
        "bbbbbbb; 1 of 5 runs are of unknown commits: sources ccccccc; 1 of 5 runs are continued with other sources: "
        "bbbbbbb (changed tree), aaaaaaa."
    )
    assert of_runs([]) == ""


def put(folder: Path, **sources: object) -> None:
    for path in folder.rglob("environment.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "earlier": [], **sources}))


def test_page_tables_and_terminal_mark_what_is_not_clean(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    put(tmp_path / "cmp", **CLEAN)
    out = tmp_path / "page"
    put(tmp_path / "cmp" / "fedproc", **CHANGED)
    assert execute(["report", str(tmp_path / "cmp"), "--out", str(out)]) == 0
    said = "2 of 4 runs are of trees with uncommitted changes"
    assert said in " ".join(capsys.readouterr().out.split())
    rows = "Sources: fedavg: aaaaaaa; fedproc: bbbbbbb (changed tree)."
    text = (out / "index.html").read_text(encoding="utf-8")
    head, *_, row = re.findall(r'<p class="mark">([^<]*)</p>', text)
    assert said in head and row == rows
    for kind in ("md", "tex"):
        assert rows in (out / "tables" / f"setting-0-accuracy.{kind}").read_text(encoding="utf-8").replace("%", "")
    assert (out / "tables" / "runs.csv").read_text(encoding="utf-8").count("bbbbbbb (changed tree)") == 2


def test_the_page_says_which_code_is_in_no_commit(compared: Path, tmp_path: Path) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    put(tmp_path / "cmp", **CLEAN)
    for path in (tmp_path / "cmp" / "fedproc").rglob("config.json"):
        change_config(path, plugin_sha256="e" * 64)
    for path in (tmp_path / "cmp").rglob("config.json"):
        change_config(path, network="__main__:Mine", network_sha256="f" * 64)
    assert execute(["report", str(tmp_path / "cmp"), "--out", str(tmp_path / "page")]) == 0
    head, *_, row = re.findall(r'<p class="note">(Sources[^<]*)</p>', (tmp_path / "page" / "index.html").read_text())
    method = f"row `fedproc`: a method of one&#x27;s own, by source hash {'e' * 12};"
    encoder = f"row `fedavg`: an encoder of one&#x27;s own, by source hash {'f' * 12};"
    for text in (head, row):
        assert "In no commit of fedproc: " in text and method in text and encoder in text
    assert "4 of 4 runs are of clean commits" in head


def test_a_comparison_says_that_its_runs_are_of_different_sources(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(compared, tmp_path / "cmp")
    words = ["compare", "--methods", "fedavg", "fedproc", "--seeds", "0", "1", *SMALL, "--device", "cpu"]
    put(tmp_path / "cmp", **CLEAN)
    put(tmp_path / "cmp" / "fedproc", **UNKNOWN)
    assert execute([*words, "--out", str(tmp_path / "cmp")]) == 0
    said = "runs of different sources stand side by side. Sources: fedavg: aaaaaaa; fedproc: unknown commit"
    assert said in " ".join(capsys.readouterr().out.split())
