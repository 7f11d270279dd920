"""A drawn SVG prepared for inlining: the page's text colour, a transparent background, unique ids."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from fedproc.figures.style import SVG

LINK = "{http://www.w3.org/1999/xlink}href"
LARGEST, SMALLEST = 1.4, 0.8  # limits of a figure's scale on wide and narrow pages
FOREIGN = ("script", "foreignObject", "style")  # not part of our figures
FAMILY = re.compile(r"(?<=px)(; font-family:)? '[^;]*(?=;|$)")  # the page's font is narrower than the one of the layout
USED = re.compile(r"#([\w-]+)")


def inline(drawn: str, name: str, title: str) -> str:
    """`name` makes the ids unique on the page; `title` says what the figure shows."""
    root = ElementTree.fromstring(drawn)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in FOREIGN:
                parent.remove(child)
        for attribute in [name for name in parent.attrib if name.startswith("on")]:
            del parent.attrib[attribute]
    width = float(root.get("viewBox", "0 0 720 0").split()[2])
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", title)
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    root.set("style", f"max-width: {width * LARGEST:.0f}px; min-width: {width * SMALLEST:.0f}px")
    used = _used(root)
    for group in root.iter(f"{{{SVG}}}g"):
        if (group.get("id") or "").startswith("patch_"):
            for path in group.iter(f"{{{SVG}}}path"):
                path.set("style", path.get("style", "").replace("fill: #ffffff", "fill: none"))
    for element in root.iter():
        style = element.get("style", "").replace("#000000", "currentColor").replace("#666666", "var(--grey)")
        element.set("style", FAMILY.sub("", style))
        if not element.get("style"):
            del element.attrib["style"]
        own = element.attrib.pop("id", None)
        if own in used:
            element.set("id", f"{name}-{own}")
        for attribute in (LINK, "clip-path"):
            if attribute in element.attrib:
                element.set(attribute, USED.sub(rf"#{name}-\1", element.attrib[attribute]))
    return ElementTree.tostring(root, encoding="unicode")


def _used(root: ElementTree.Element) -> set[str]:
    """Ids that something refers to."""
    referring = [e.attrib[a] for e in root.iter() for a in (LINK, "clip-path") if a in e.attrib]
    return {name for text in referring for name in USED.findall(text)}
