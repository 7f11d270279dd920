"""Numbers in tables stay on one line: 68.3 ± 1.9, -0.20 to +0.43."""

from __future__ import annotations

import re

from docutils import nodes
from sphinx.application import Sphinx

SPACES = re.compile(r"(?<=\d) (?=± \d)|(?<=±) (?=\d)|(?<=\d) (?=to [-+]?\d)|(?<= to) (?=[-+]?\d)")


def joined(app: Sphinx, doctree: nodes.document) -> None:
    for entry in doctree.findall(nodes.entry):
        for text in list(entry.findall(nodes.Text)):
            text.parent.replace(text, nodes.Text(SPACES.sub("\N{NO-BREAK SPACE}", str(text))))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", joined)
    return {"parallel_read_safe": True}
