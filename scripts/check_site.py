"""Checks a built documentation site: every link inside it leads to a file and, where it says so, to a place on it, and
no page loads anything from elsewhere, so that the site can be read from a disk. Links to the web are not followed.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
FROM_ELSEWHERE = re.compile(r"""(?:@import\s+|url\(\s*)['"]?((?:https?:)?//[^'")\s]+)""")
HARMLESS = {"canonical", "author", "license", "search"}  # link elements that load nothing


class Read(HTMLParser):
    """The places on a page, where its links lead, and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in LOADS and LOADS[tag] in given and given.get("rel") not in HARMLESS:
            self.loads.append(given[LOADS[tag]])


def complaints(site: Path) -> list[str]:
    pages = {page.resolve(): Read(page) for page in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site}: no page in it"]
    for page, read in pages.items():
        name = page.relative_to(site.resolve())
        for target in (*read.links, *read.loads):
            parts = urlsplit(target)
            if parts.scheme == "data" or (parts.scheme in ("http", "https", "mailto") and target in read.links):
                continue
            if parts.scheme or parts.netloc or parts.path.startswith("/"):
                found.append(f"{name}: {target}: is not inside the site")
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not file.is_file() or not file.is_relative_to(site.resolve()):
                found.append(f"{name}: {target}: no such file")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].places:
                found.append(f"{name}: {target}: no such place on that page")
    for sheet in sorted(site.rglob("*.css")):
        targets = FROM_ELSEWHERE.findall(sheet.read_text(encoding="utf-8"))
        found += [f"{sheet.relative_to(site)}: {target}: is not inside the site" for target in targets]
    return found


def main(site: Path) -> None:
    found = complaints(site)
    print("\n".join(found) or f"{site}: {len(list(site.rglob('*.html')))} pages, all links inside it lead somewhere")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
