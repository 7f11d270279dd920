"""The style of all figures: matplotlib without a display, colours that colour-blind readers can distinguish.

A picture holds the texts of its points, which are tooltips in an SVG: each shape of a collection with a name (`gid`)
has one.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedproc.cells import legible

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666", "#B8A800")
METHODS = ("fedavg", "fedproc", "moon", "scaffold", "fedprox", "fednova", "solo", "fedavgm")  # their colours are fixed
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
    """One line per label: methods have fixed colours, other labels the remaining ones, then all colours dashed."""
    labels = list(labels)
    found = {label: Line(colour(METHODS.index(label))) for label in labels if label in METHODS}
    taken = {line.colour for line in found.values()}
    left = [Line(each) for each in COLOURS if each not in taken]
    left += [Line(each, dashes) for dashes in DASHES for each in COLOURS]
    others = [label for label in labels if label not in found]
    return found | {label: left[place % len(left)] for place, label in enumerate(others)}


def legend(made: Figure, panels: Sequence[Axes]) -> None:
    """Next to the panels, where it covers no line."""
    drawn = [panel.get_legend_handles_labels() for panel in panels]
    found = {label: handle for handles, labels in drawn for handle, label in zip(handles, labels, strict=True)}
    if found:
        made.legend(
            list(found.values()), list(found), frameon=False, fontsize=8, handlelength=3, loc="outside right upper"
        )


def plain(text: str) -> str:
    """A label taken literally: a $ begins no formula, one that begins with _ is not left out of the legend, and control
    characters, which no SVG can hold, are shown as a sign.
    """
    return ("\u200b" if text.startswith("_") else "") + legible(text).replace("$", r"\$")


@dataclass
class Picture:
    """A figure, and the texts of its points by the name of their collection."""

    figure: Figure
    texts: dict[str, Sequence[str]] = field(default_factory=dict)

    def points(self, panel: Axes, x: Sequence[float], y: Sequence[float], shade: str, texts: Sequence[str]) -> None:
        """Add invisible points with tooltips over a line."""
        name = f"points-{len(self.texts)}"
        panel.scatter(x, y, s=28, color=shade, alpha=0, linewidths=0, gid=name)
        self.texts[name] = texts

    def explain(self, words: str) -> None:
        """Explain bands or bars below the panels."""
        self.figure.supxlabel(words, fontsize=8, color="#666666")

    def save(self, path: Path, kind: str = "png") -> None:
        """As PNG or SVG, whatever the file's extension (it may be a temporary one), without a date."""
        if kind == "svg":
            path.write_text(self.svg, encoding="utf-8")
        else:
            self._draw(path, kind, {"Software": None})

    def _draw(self, target: Path | io.StringIO, kind: str, metadata: dict[str, None]) -> None:
        """Panels are laid out at the first drawing only, since that takes as long as drawing."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in letters that the font lacks
            self.figure.savefig(target, format=kind, metadata=metadata)
        self.figure.set_layout_engine("none")

    @cached_property
    def svg(self) -> str:
        """Text stays text, and every point has its value as a tooltip."""
        drawn = io.StringIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedproc"}):
            self._draw(drawn, "svg", {"Date": None})
        root = ElementTree.fromstring(legible(drawn.getvalue()))
        named = {each.get("id"): each for each in root.iter(f"{{{SVG}}}g")}
        for name, texts in self.texts.items():
            if name not in named:
                raise ValueError(f"{name}: nothing of this name was drawn")
            shapes = [shape for shape in named[name].iter() if shape.tag in SHAPES and not _defines(named[name], shape)]
            if len(shapes) != len(texts):
                raise ValueError(f"{name}: {len(shapes)} shapes were drawn for {len(texts)} values")
            for shape, text in zip(shapes, texts, strict=True):
                ElementTree.SubElement(shape, f"{{{SVG}}}title").text = legible(text)
        return ElementTree.tostring(root, encoding="unicode")


def _defines(group: ElementTree.Element, shape: ElementTree.Element) -> bool:
    """Whether a shape is only a definition that others use."""
    return any(shape in list(defs) for defs in group.iter(f"{{{SVG}}}defs"))


class ShownFigure(Figure):
    """A figure that notebooks show without pyplot, half as wide as its picture."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png", metadata={"Software": None})
        width, height = (int(self.dpi * side / 2) for side in self.get_size_inches())
        return drawn.getvalue(), {"width": width, "height": height}


def picture(width: float, height: float) -> Picture:
    made = ShownFigure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(made)
    return Picture(made)
