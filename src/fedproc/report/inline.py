"""A drawn SVG prepared for inlining: what may run or load something is left out, the page's text colour, a transparent
background, unique ids.

The figure may come from a stranger's folder, so elements, attributes and styles are those that our own figures have,
and every other is dropped.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from fedproc.figures.style import SVG

LINK = "{http://www.w3.org/1999/xlink}href"
LARGEST, SMALLEST = 1.4, 0.8  # limits of a figure's scale on wide and narrow pages
ELEMENTS = frozenset(
    f"{{{SVG}}}{name}"
    for name in (
        "svg", "g", "defs", "use", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan",
        "title", "desc", "clipPath", "image", "linearGradient", "radialGradient", "stop",
    )
)  # fmt: skip
ATTRIBUTES = frozenset(
    (
        "id", "viewBox", "preserveAspectRatio", "transform", "d", "points", "x", "y", "x1", "y1", "x2", "y2", "cx",
        "cy", "r", "rx", "ry", "dx", "dy", "width", "height", "offset", "style", "clip-path", "clip-rule", "fill",
        "fill-rule", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap",
        "stroke-linejoin", "opacity", "text-anchor", "font-family", "font-size", "font-weight", "stop-color",
        "stop-opacity", "gradientUnits", "gradientTransform", "clipPathUnits", LINK,
    )
)  # fmt: skip
PLAIN_LINK = re.compile(r"#[\w.:-]+")  # within the figure
PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]+")
PLAIN_VALUE = re.compile(r"(?:[^\\(<&@]|(?:rgb|matrix|translate|scale|rotate)\(|url\(#[\w.:-]+\))*", re.IGNORECASE)
SIZES = re.compile(r"[\d.-]+[\s,]+[\d.-]+[\s,]+(\d{1,5}(?:\.\d+)?)[\s,]+\d{1,5}(?:\.\d+)?")
USUAL_WIDTH = 720.0
ELEMENT_STYLE = "*{stroke-linejoin: round; stroke-linecap: butt}"  # of matplotlib
FAMILY = re.compile(r"(?<=px)(; font-family:)? '[^;]*(?=;|$)")  # the page's font is narrower than the one of the layout
USED = re.compile(r"#([\w.:-]+)")


def harmless(drawn: str) -> str:
    """A figure as a file of its own, without what may run or load something."""
    return ElementTree.tostring(_harmless(ElementTree.fromstring(drawn), (ELEMENT_STYLE,)), encoding="unicode")


def inline(drawn: str, name: str, title: str) -> str:
    """`name` makes the ids unique on the page; `title` says what the figure shows."""
    root = _harmless(ElementTree.fromstring(drawn))
    width = float(found.group(1)) if (found := SIZES.fullmatch(root.get("viewBox", ""))) else USUAL_WIDTH
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.set("role", "img")
    root.set("aria-label", title)
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
            if attribute in element.attrib and not PICTURE.fullmatch(element.attrib[attribute]):
                element.set(attribute, USED.sub(rf"#{name}-\1", element.attrib[attribute]))
    return ElementTree.tostring(root, encoding="unicode")


def _harmless(root: ElementTree.Element, styles: tuple[str, ...] = ()) -> ElementTree.Element:
    """The figure with the elements and attributes that our own have, and no others; of style sheets, these."""
    if root.tag != f"{{{SVG}}}svg":
        raise ValueError(f"expected an SVG, got {root.tag[:60]}")
    for parent in list(root.iter()):
        for child in list(parent):
            sheet = child.tag == f"{{{SVG}}}style" and (child.text or "").strip() in styles and not len(child)
            if child.tag not in ELEMENTS and not sheet:
                parent.remove(child)
        for attribute, value in list(parent.attrib.items()):
            if attribute not in ATTRIBUTES or not _plain(parent, attribute, value):
                del parent.attrib[attribute]
    return root


def _plain(element: ElementTree.Element, attribute: str, value: str) -> bool:
    if attribute == LINK:
        if element.tag == f"{{{SVG}}}image":
            return PICTURE.fullmatch(value) is not None
        return PLAIN_LINK.fullmatch(value) is not None
    return "//" not in value and PLAIN_VALUE.fullmatch(value) is not None


def _used(root: ElementTree.Element) -> set[str]:
    """Ids that something refers to."""
    referring = [e.attrib[a] for e in root.iter() for a in (LINK, "clip-path") if a in e.attrib]
    return {name for text in referring if not text.startswith("data:") for name in USED.findall(text)}
