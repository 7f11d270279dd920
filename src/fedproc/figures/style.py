"""One look for all pictures: matplotlib without a display, colours that colour-blind readers tell apart.

A picture knows the values behind its points, so that an SVG can tell them: the points drawn as one collection with a
name (`gid`) have a text each, or one for all of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")
METHODS = ("fedavg", "fedproc", "moon", "scaffold", "fedprox", "fednova", "solo", "fedavgm")  # the same in all figures
DASHES = ("--", ":", "-.")
SVG = "http://www.w3.org/2000/svg"
SHAPES = tuple(f"{{{SVG}}}{name}" for name in ("use", "path", "rect"))
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


@dataclass(frozen=True)
class Line:
    """How a label's line is drawn, in all panels of a figure."""

    colour: str
    dashes: str = "-"


def lines(labels: Iterable[str]) -> dict[str, Line]:
    """One for each label: a method has its own colour, others what is left; then all colours again, dashed."""
    labels = list(labels)
    found = {label: Line(colour(METHODS.index(label))) for label in labels if label in METHODS}
    taken = {line.colour for line in found.values()}
    left = [Line(each) for each in COLOURS if each not in taken]
    left += [Line(each, dashes) for dashes in DASHES for each in COLOURS]
    others = [label for label in labels if label not in found]
    return found | {label: left[place % len(left)] for place, label in enumerate(others)}


def legend(made: Figure, panels: Sequence[Axes]) -> None:
    """Beside the panels, where it covers no line."""
    drawn = [panel.get_legend_handles_labels() for panel in panels]
    found = {label: handle for handles, labels in drawn for handle, label in zip(handles, labels, strict=True)}
    if found:
        made.legend(
            list(found.values()), list(found), frameon=False, fontsize=8, handlelength=3, loc="outside right upper"
        )


def plain(text: str) -> str:
    """A label as it is: a $ begins no formula, and one that begins with _ is not left out of the legend."""
    return ("\u200b" if text.startswith("_") else "") + text.replace("$", r"\$")


@dataclass
class Picture:
    """A figure, and the texts of its points by the name of their collection."""

    figure: Figure
    texts: dict[str, Sequence[str]] = field(default_factory=dict)

    def points(self, panel: Axes, x: Sequence[float], y: Sequence[float], shade: str, texts: Sequence[str]) -> None:
        """Lay points that nobody sees and that tell their values over a line."""
        name = f"points-{len(self.texts)}"
        panel.scatter(x, y, s=28, color=shade, alpha=0, linewidths=0, gid=name)
        self.texts[name] = texts

    def explain(self, words: str) -> None:
        """Say below the panels what bands and bars are."""
        self.figure.supxlabel(words, fontsize=8, color="#666666")

    def save(self, path: Path, kind: str = "png") -> None:
        """As PNG or SVG, whatever the file's name ends in (it may be a temporary one), with no date in it."""
        if kind == "svg":
            path.write_text(self.svg, encoding="utf-8")
        else:
            self._draw(path, kind, {"Software": None})

    def _draw(self, target: Path | io.StringIO, kind: str, metadata: dict[str, None]) -> None:
        """Panels are put in place when it is drawn first, which takes as long as drawing, and stay there."""
        self.figure.savefig(target, format=kind, metadata=metadata)
        self.figure.set_layout_engine("none")

    @cached_property
    def svg(self) -> str:
        """Text stays text, and every point says its value."""
        drawn = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedproc"}):
            self._draw(drawn, "svg", {"Date": None})
        root = ElementTree.fromstring(drawn.getvalue())
        named = {each.get("id"): each for each in root.iter(f"{{{SVG}}}g")}
        for name, texts in self.texts.items():
            if name not in named:
                raise ValueError(f"{name}: nothing of this name was drawn")
            shapes = [shape for shape in named[name].iter() if shape.tag in SHAPES and not _defines(named[name], shape)]
            if len(shapes) != len(texts):
                raise ValueError(f"{name}: {len(shapes)} shapes were drawn for {len(texts)} values")
            for shape, text in zip(shapes, texts, strict=True):
                ElementTree.SubElement(shape, f"{{{SVG}}}title").text = text
        return ElementTree.tostring(root, encoding="unicode")


def _defines(group: ElementTree.Element, shape: ElementTree.Element) -> bool:
    """Whether a shape only stands there for others to use."""
    return any(shape in list(defs) for defs in group.iter(f"{{{SVG}}}defs"))


def picture(width: float, height: float) -> Picture:
    made = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    return Picture(made)
