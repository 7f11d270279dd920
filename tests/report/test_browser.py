"""The page in a real browser, from the file system. FEDPROC_BROWSER=required makes a missing Chromium a failure."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
PHONE = {"width": 390, "height": 844}


class Opened:
    """The page in a window, with everything that it complained about or asked for."""

    def __init__(self, browser: Any, page: Path, **given: Any) -> None:
        self.window = browser.new_page(**given)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.window.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.window.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.window.on("request", lambda request: self.requests.append(request.url))
        self.window.goto(page.as_uri())


def test_no_complaints_and_nothing_fetched(browser: Any, page: Path) -> None:
    opened = Opened(browser, page)
    opened.window.wait_for_timeout(200)
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [page.as_uri()]


def test_every_figure_is_drawn(browser: Any, page: Path) -> None:
    window = Opened(browser, page).window
    drawn = window.evaluate(
        """() => [...document.querySelectorAll("figure")].map((figure) => {
            const box = figure.querySelector("svg").getBoundingClientRect();
            const shapes = [...figure.querySelectorAll("path, use")].filter((s) => s.getBoundingClientRect().width > 0);
            return [figure.id, box.width, box.height, shapes.length, figure.querySelectorAll("[data-text]").length];
        })"""
    )
    kinds = ("curves", "seeds", "classes", "partition", "confusions", "time")
    expected = {f"figure-tiny-{name}" for name in ("tsne", "rounds", "epochs")}
    assert expected | {f"figure-setting-0-{kind}" for kind in kinds} <= {name for name, *_ in drawn}
    for name, width, height, shapes, values in drawn:
        assert width > 300 and height > 60 and shapes >= 10, name
        assert values > 0, name


def test_numbers_in_the_browser_are_those_of_the_run_folders(browser: Any, page: Path, compared: Path) -> None:
    window = Opened(browser, page).window
    for method in ("fedavg", "fedproc"):
        shown = window.locator("#setting-0 table").first.locator("tr", has_text=method).locator("td").nth(1)
        paths = sorted((compared / method).rglob("result.json"))
        finals = [json.loads(path.read_text())["final_accuracy"] for path in paths]
        assert float(shown.get_attribute("data-value")) == pytest.approx(100 * statistics.fmean(finals))
        text = f"{100 * statistics.fmean(finals):.2f} ± {100 * statistics.stdev(finals):.2f}"
        assert shown.inner_text() == text


def test_a_point_tells_its_value(browser: Any, page: Path, compared: Path) -> None:
    window = Opened(browser, page).window
    point = window.locator("#figure-setting-0-curves [data-text^='fedproc, round 2']").first
    point.scroll_into_view_if_needed()
    assert not window.locator("#tip").is_visible()
    box = point.bounding_box()
    window.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    told = window.locator("#tip").inner_text()
    paths = sorted((compared / "fedproc").rglob("metrics.jsonl"))
    values = [100 * json.loads(path.read_text().splitlines()[1])["test_accuracy"] for path in paths]
    near = [f"fedproc, round 2: {statistics.fmean(values):.2f} %", "fedavg, round 2:"]  # points may lie on each other
    assert told.startswith(tuple(near)) and point.get_attribute("data-text").startswith(near[0])
    window.mouse.move(2, 2)
    window.wait_for_timeout(50)
    assert not window.locator("#tip").is_visible()


def test_a_finger_on_a_point_tells_its_value(browser: Any, page: Path) -> None:
    window = Opened(browser, page, viewport=PHONE, has_touch=True).window
    point = window.locator("#figure-setting-0-curves [data-text^='fedproc, round 1']").first
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    window.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert ", round 1: " in window.locator("#tip").inner_text()


def test_values_are_told_where_points_are_after_things_above_were_opened(browser: Any, page: Path) -> None:
    window = Opened(browser, page).window
    point = window.locator("#figure-setting-0-curves [data-text^='fedproc, round 2']").first
    for moved in (False, True):
        if moved:
            window.evaluate("document.querySelector('nav').style.paddingTop = '300px'")
        point.scroll_into_view_if_needed()
        box = point.bounding_box()
        window.mouse.move(2, 2)
        window.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert ", round 2: " in window.locator("#tip").inner_text()


def test_light_and_dark(browser: Any, page: Path) -> None:
    found = []
    for scheme in ("light", "dark"):
        window = Opened(browser, page, color_scheme=scheme).window
        found.append(
            window.evaluate(
                """() => [document.body, document.querySelector("figure svg text")].map((element) =>
                    getComputedStyle(element)[element === document.body ? "backgroundColor" : "fill"])"""
            )
        )
    (light, ink), (dark, chalk) = found
    assert light == "rgb(255, 255, 255)" and brightness(dark) < 60
    assert brightness(ink) < 90 and brightness(chalk) > 180


def brightness(colour: str) -> float:
    return statistics.fmean(float(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))


def test_on_a_phone_only_tables_and_figures_scroll_sideways(browser: Any, page: Path) -> None:
    window = Opened(browser, page, viewport=PHONE).window
    assert window.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    size = window.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
    assert size >= 15
    keys = window.locator("#setting-0 .keys")
    assert keys.is_visible() and keys.inner_text().split() == ["fedavg", "fedproc"]
    assert window.locator("#tiny-rounds .keys").inner_text().split()[:2] == ["solo", "fedavg"]
    assert not Opened(browser, page).window.locator("#setting-0 .keys").is_visible()


def test_in_print_there_is_no_navigation(browser: Any, page: Path, tmp_path: Path) -> None:
    window = Opened(browser, page, color_scheme="dark").window
    window.emulate_media(media="print")
    assert not window.locator("nav").is_visible()
    assert window.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    window.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert window.locator("#runs table").is_visible()
    window.evaluate("dispatchEvent(new Event('afterprint'))")
    window.pdf(path=str(tmp_path / "page.pdf"))
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
