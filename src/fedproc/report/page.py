"""The HTML page: sections with tables and figures, which are also written as files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from xml.etree import ElementTree

from fedproc.cells import legible
from fedproc.errors import InputError
from fedproc.figures.style import Line, Picture
from fedproc.files import kind_of, naming, read_bytes, read_text, write_file, write_json
from fedproc.report.inline import harmless, inline
from fedproc.report.tables import Table

MARK = "report.json"  # which files a report is made of
OURS = re.compile(r"(tables|figures)/[\w.-]+\.(csv|md|tex|png|svg)")
TITLE = "<title>fedproc report</title>"
PNG = b"\x89PNG\r\n\x1a\n"
DASHES = {"-": "none", "--": "6 3", ":": "2 3", "-.": "6 3 2 3"}
WORDS = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}


@dataclass
class Page:
    """Sections in their order, and every table and figure by its name."""

    sections: list[tuple[str, str, str]] = field(default_factory=list)  # anchor, title, HTML
    tables: dict[str, dict[str, str]] = field(default_factory=dict)  # file contents by extension
    pictures: dict[str, Picture | Path] = field(default_factory=dict)  # drawn here, or an SVG with a PNG next to it

    def table(self, name: str, table: Table, caption: bool = True, texts: dict[str, str] | None = None) -> str:
        """A table, and its files: `texts`, or those it makes itself."""
        self.tables[name] = {kind: legible(text) for kind, text in (texts or table.formats()).items()}
        links = " · ".join(
            f'<a download="{name}.{kind}" href="data:text/plain;base64,{_base64(text)}">{WORDS[kind]}</a>'
            for kind, text in self.tables[name].items()
        )
        return f'{table.html(caption)}<p class="files">{links}</p>'

    def figure(
        self, name: str, picture: Picture | Path, title: str, note: str = "", keys: Mapping[str, Line] | None = None
    ) -> str:
        """`keys` are the lines of its legend, listed above it on narrow screens, which show only a part of it."""
        self.pictures[name] = picture
        svg = picture.svg if isinstance(picture, Picture) else _read(picture)
        links = " · ".join(f'<a href="figures/{name}.{kind}">{kind.upper()}</a>' for kind in ("png", "svg"))
        caption = f"{escape(note)} " if note else ""
        return (
            f'{_keys(keys or {})}<figure class="scroll" id="figure-{name}">{inline(svg, name, title)}</figure>'
            f'<p class="note">{caption}<span class="files">{links}</span></p>'
        )

    def section(self, anchor: str, title: str, *parts: str) -> None:
        self.sections.append((anchor, title, "\n".join(part for part in parts if part)))

    def html(self, head: str) -> str:
        """The page; what strangers' files say stands in it without control characters."""
        own = resources("fedproc.report")
        style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        links = "".join(f'<li><a href="#{anchor}">{escape(title)}</a></li>' for anchor, title, _ in self.sections)
        body = "\n".join(
            f'<section id="{anchor}"><h2>{escape(title)}</h2>\n{text}</section>'
            for anchor, title, text in self.sections
        )
        return legible(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">{TITLE}'
            f'<link rel="icon" href="data:,"><style>\n{style}</style></head>\n<body>\n<h1>fedproc report</h1>\n{head}'
            f'<nav><ul>{links}</ul></nav>\n{body}\n<div id="tip" hidden></div>\n<script>\n{script}</script>\n'
            "</body></html>\n"
        )

    def write(self, out: Path, head: str, progress: Callable[[str], object] = str) -> Path:
        """Write index.html, tables/ and figures/ into a folder that is empty or holds an earlier report, whose files
        are replaced; report.json lists them.
        """
        before = claim(out)
        for folder in ("tables", "figures"):
            with naming(out / folder):
                (out / folder).mkdir(parents=True, exist_ok=True)
        made = [f"tables/{name}.{kind}" for name, texts in self.tables.items() for kind in texts]
        made += [f"figures/{name}.{kind}" for name in self.pictures for kind in ("png", "svg")]
        write_json(out / MARK, {"fedproc": "report", "files": sorted({*before, *made})})
        for old in (out / name for name in before if name not in made):
            if kind_of(old) is None:
                old.unlink(missing_ok=True)
        for name, texts in self.tables.items():
            for kind, text in texts.items():
                write_file(out / "tables" / f"{name}.{kind}", partial(_write, text=text))
        for place, (name, picture) in enumerate(self.pictures.items()):
            progress(f"writing figure {place + 1} of {len(self.pictures)}")
            for kind in ("png", "svg"):
                write_file(out / "figures" / f"{name}.{kind}", partial(_draw, picture=picture, kind=kind))
        write_file(out / "index.html", partial(_write, text=self.html(head)))
        write_json(out / MARK, {"fedproc": "report", "files": sorted(made)})
        return out / "index.html"


def claim(out: Path) -> list[str]:
    """The files of an earlier report in a folder; one that holds something else is refused."""
    if not out.is_dir() or not any(out.iterdir()):
        return []
    for name in ("tables", "figures"):
        if kind_of(out / name) not in (None, "a folder"):
            raise InputError(f"{out / name}: {kind_of(out / name)}, which is not followed; take another --out")
    try:
        mark = json.loads(read_text(out / MARK)) if (out / MARK).exists() else {}
        files = mark.get("files", []) if isinstance(mark, dict) and mark.get("fedproc") == "report" else None
        first = read_text(out / "index.html")[:2000] if (out / "index.html").exists() else ""
    except (InputError, OSError, ValueError, RecursionError) as error:
        raise InputError(f"--out {out}: no report that can be replaced ({error}); take another folder") from error
    if (mark and files is not None) or TITLE in first:
        return [name for name in files or [] if isinstance(name, str) and OURS.fullmatch(name)]
    held = min(entry.name for entry in out.iterdir())
    raise InputError(f"--out {out}: holds {held}, expected an empty folder or one with an earlier report")


def _policy(style: str, script: str) -> str:
    """Nothing is loaded, and no script or style sheet runs but the page's own two."""
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(f"\n{text}".encode()).digest()).decode() for text in (style, script)
    )
    return (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src-elem 'sha256-{style_hash}'; "
        "style-src-attr 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _keys(lines: Mapping[str, Line]) -> str:
    """A legend as a list."""
    items = ""
    for label, line in lines.items():
        stroke = f"stroke:{line.colour};stroke-dasharray:{DASHES[line.dashes]}".replace("#666666", "var(--grey)")
        drawn = f'<path d="M0 4H28" stroke-width="2.5" style="{stroke}"/>'
        items += f'<li><svg width="28" height="8" aria-hidden="true">{drawn}</svg> {escape(label)}</li>'
    return f'<ul class="keys">{items}</ul>' if items else ""


def _read(path: Path) -> str:
    try:
        return legible(harmless(read_text(path)))
    except InputError:
        raise
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _draw(path: Path, picture: Picture | Path, kind: str) -> None:
    if isinstance(picture, Picture):
        picture.save(path, kind)
    else:
        source = picture.with_suffix(f".{kind}")
        try:
            content = _read(source).encode() if kind == "svg" else read_bytes(source)
        except OSError as error:
            raise InputError(f"{source}: cannot be read: {error.strerror}") from error
        if kind == "png" and not content.startswith(PNG):
            raise InputError(f"{source}: not a PNG file")
        path.write_bytes(content)


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
