"""The console that commands print to."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedproc.cli import CONTROL


class PlainConsole(Console):
    """Shows control characters in names as a sign: a class called ESC[2J does not clear the screen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(segment.text.translate(CONTROL), segment.style)
