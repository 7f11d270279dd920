"""Figures that a stranger drew, and folders that are not ours to write to."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedproc import InputError
from fedproc.figures.curves import draw_curves
from fedproc.report.inline import harmless, inline
from fedproc.report.page import MARK, Page
from fedproc.report.tables import Shown, Table

HOSTILE = [
    "<script>alert(1)</script>",
    "<SCRIPT>alert(1)</SCRIPT>",
    "<ScRiPt xlink:href='data:,alert(1)'/>",
    "<foreignobject><body xmlns='http://www.w3.org/1999/xhtml' onload='alert(1)'/></foreignobject>",
    "<foreignObject><iframe xmlns='http://www.w3.org/1999/xhtml' src='javascript:alert(1)'/></foreignObject>",
    "<g ONLOAD='alert(1)'/>",
    "<g onclick='alert(1)'/>",
    "<a xlink:href='javascript:alert(1)'><path d='M0 0'/></a>",
    "<a href='javascript:alert(1)'><path d='M0 0'/></a>",
    "<use xlink:href='http://evil.example/x.svg#a'/>",
    "<use href='data:image/svg+xml,x#a'/>",
    "<image xlink:href='http://evil.example/x.png'/>",
    "<image xlink:href='data:image/svg+xml;base64,PHN2Zy8+'/>",
    "<animate attributeName='href' to='javascript:alert(1)'/>",
    "<set attributeName='onload' to='alert(1)'/>",
    "<style>@import url(http://evil.example/x.css)</style>",
    "<path style='fill: url(http://evil.example/x)' d='M0 0'/>",
    "<path style='background: u\\72l(http://evil.example/x)' d='M0 0'/>",
    "<path fill='url(//evil.example/x)' d='M0 0'/>",
    "<x:script xmlns:x='http://www.w3.org/1999/xhtml'>alert(1)</x:script>",
    "<text><tspan><script>alert(1)</script></tspan></text>",
    "<iframe xmlns='http://www.w3.org/1999/xhtml' src='http://evil.example'/>",
]


def svg(inside: str) -> str:
    names = "xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink'"
    return f"<svg {names} viewBox='0 0 10 10'>{inside}</svg>"


@pytest.mark.parametrize("inside", HOSTILE)
def test_what_runs_or_loads_something_is_left_out(inside: str) -> None:
    left = re.compile(r"script|foreign|alert|evil|import|iframe|[\s:]on\w+=|url\((?!#)", re.IGNORECASE)
    for text in (inline(svg(inside), "a", "t"), harmless(svg(inside)), inline(svg(f"<defs>{inside}</defs>"), "a", "t")):
        assert not left.search(text), text


def test_our_own_figures_lose_nothing_that_is_drawn() -> None:
    drawn = draw_curves({"a": [[{"round": 1, "test_accuracy": 0.5}, {"round": 2, "test_accuracy": 0.6}]]}).svg

    def shapes(text: str) -> list[str]:
        names = [element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()]
        return [name for name in names if name not in ("metadata", "style", "RDF", "Work", "type", "Agent", "title")]

    kept = shapes(harmless(drawn))
    assert len(kept) > 50 and kept == [name for name in shapes(drawn) if name not in ("format", "creator", "date")]
    assert "stroke-linejoin" in harmless(drawn)


def page() -> Page:
    made = Page()
    made.section("x", "X", made.table("runs-x", Table("t", ["", "a"], [[Shown("=cmd()"), Shown("1", 1.0)]])))
    return made


def test_only_an_empty_folder_or_an_earlier_report_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<title>my homepage</title>")
    with pytest.raises(InputError, match=r"holds index\.html, expected an empty folder or one with an earlier report"):
        page().write(tmp_path / "site", "")
    assert (tmp_path / "site" / "index.html").read_text() == "<title>my homepage</title>"
    page().write(tmp_path / "report", "")
    mine = tmp_path / "report" / "tables" / "runs-mine.csv"  # as our own files are called
    mine.write_text("mine")
    page().write(tmp_path / "report", "")
    assert mine.read_text() == "mine"


def test_a_list_of_files_that_lies_deletes_nothing_elsewhere(tmp_path: Path) -> None:
    page().write(tmp_path / "report", "")
    (tmp_path / "victim.csv").write_text("precious")
    lies = '{"fedproc": "report", "files": ["../victim.csv", "tables/../../victim.csv", 3, "/etc/passwd", null]}'
    (tmp_path / "report" / MARK).write_text(lies)
    page().write(tmp_path / "report", "")
    assert (tmp_path / "victim.csv").read_text() == "precious"


def test_a_link_in_a_report_is_not_followed(tmp_path: Path) -> None:
    page().write(tmp_path / "report", "")
    (tmp_path / "victim").mkdir()
    for file in (tmp_path / "report" / "tables").iterdir():
        file.rename(tmp_path / "victim" / file.name)
    (tmp_path / "report" / "tables").rmdir()
    (tmp_path / "report" / "tables").symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="tables: a link, which is not followed"):
        page().write(tmp_path / "report", "")


def test_the_page_allows_its_own_script_and_style_alone(tmp_path: Path) -> None:
    text = page().write(tmp_path / "report", "").read_text()
    (policy,) = re.findall('http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert text.index("Content-Security-Policy") < text.index("<style>")
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "script-src 'unsafe" not in policy
    assert (tmp_path / "report" / "tables" / "runs-x.csv").read_text().splitlines()[1].startswith("'=cmd()")
