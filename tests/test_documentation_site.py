"""The documentation site: what its check complains about, and the built site in a browser, from the file system."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
sys.path.insert(0, str(Path(__file__).parent.parent))
from check_site import complaints

import fedproc

ROOT = Path(__file__).parent.parent
PHONE = {"width": 390, "height": 844}


def test_links_that_lead_nowhere_and_loads_from_elsewhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="#top">1</a><a href="a/page.html#there">2</a><a href="https://example.org">3</a>'
        '<a href="gone.html">4</a><a href="a/page.html#gone">5</a><img src="https://example.org/x.png">'
        '<link rel="canonical" href="https://example.org/index.html"><img src="data:,">'
    )
    (tmp_path / "a" / "page.html").write_text('<p id="there"><a href="../index.html">up</a><a href="/etc/hosts">6</a>')
    (tmp_path / "a" / "style.css").write_text("@import url(https://example.org/font.css); p { background: url(x.png) }")
    assert sorted(complaints(tmp_path)) == [
        "a/page.html: /etc/hosts: is not inside the site",
        "a/style.css: https://example.org/font.css: is not inside the site",
        "index.html: a/page.html#gone: no such place on that page",
        "index.html: gone.html: no such file",
        "index.html: https://example.org/x.png: is not inside the site",
    ]


def test_the_page_on_python_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"^\.\. auto(?:function|class|exception):: fedproc\.(\w+)(?:\(.*\))?$", page, re.MULTILINE))
    assert set(fedproc.__all__) == shown


def test_readme_for_an_index_has_absolute_links() -> None:
    pytest.importorskip("hatchling")
    from hatch_build import absolute

    text = "[a](docs/a.md#b) ![p](docs/p.png) [w](https://example.com) [h](#here) [`f`](src/f.py)"
    assert absolute(text, "https://example.org/r", "v1") == (
        "[a](https://example.org/r/blob/v1/docs/a.md#b) ![p](https://example.org/r/raw/v1/docs/p.png) "
        "[w](https://example.com) [h](#here) [`f`](https://example.org/r/blob/v1/src/f.py)"
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "html"]
    done = subprocess.run([*command, str(ROOT / "docs"), str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_is_whole(site: Path) -> None:
    assert complaints(site) == []
    assert not list(site.rglob("metrics.jsonl"))  # runs stay out
    api = (site / "api.html").read_text(encoding="utf-8")
    assert "Run every method and variant with every seed" in api and "fedproc.tau" in api and "batch_size" in api


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_the_site_is_read_and_searched_without_a_network(browser: Any, site: Path) -> None:
    window = browser.new_page(viewport=PHONE, color_scheme="dark")
    asked: list[str] = []
    failed: list[str] = []
    window.on("request", lambda request: asked.append(request.url))
    window.on("pageerror", lambda error: failed.append(str(error)))
    for page in ("index", "tutorial", "api", "commands", "glossary", "results/README", "results/leaderboard/README"):
        window.goto((site / f"{page}.html").as_uri())
        assert window.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), page
    background = window.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in background.strip("rgba()").split(",")[:3]) < 80
    window.goto(f"{(site / 'search.html').as_uri()}?q=heterogeneity")
    window.wait_for_selector("#search-results li a")
    found = window.eval_on_selector_all("#search-results li a", "links => links.map(link => link.textContent)")
    assert "Glossary" in found
    assert failed == [] and all(url.startswith(("file:", "data:")) for url in asked)
