"""Links from pages to the rest of the repository, which is not part of the site.

A file comes along as a download. A folder (of runs, of sources) does not: its link becomes words that say where it is.
"""

from __future__ import annotations

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parent.parent.parent


def settle(app: Sphinx, doctree: nodes.document) -> None:
    page = Path(app.env.doc2path(app.env.docname))
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link.get("reftype") != "myst":
            continue
        target = link["reftarget"]
        if link.get("refdomain") == "doc":  # a Markdown file, named from the top of docs/
            file = Path(app.srcdir, f"{target}.md")
            if file.is_file() and target not in app.env.found_docs:
                name = Path("/", f"{target}.md")
                copy = addnodes.download_reference("", "", *link.children, refdoc=app.env.docname, reftarget=str(name))
                link.replace_self(copy)
        elif (page.parent / target).is_dir():
            where = (page.parent / target).resolve().relative_to(ROOT)
            link.replace_self(nodes.abbreviation("", "", *link.children, explanation=f"in the repository: {where}"))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-read", settle, priority=100)  # before files to copy are gathered
    return {"parallel_read_safe": True}
