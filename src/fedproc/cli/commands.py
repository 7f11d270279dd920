"""All commands under one parser."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fedproc import __version__
from fedproc.cli import CONTROL, DEBUG, compare, data, federate, listing, paper, predict, report, run
from fedproc.cli.parser import Parser
from fedproc.methods.plugin import all_methods
from fedproc.simulation.interrupt import Interrupt


class PlainConsole(Console):
    """Shows control characters in names as a sign: a class called ESC[2J does not clear the screen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(segment.text.translate(CONTROL), segment.style)


def build_parser(plugins: Sequence[Path] = ()) -> Parser:
    """Every command and every flag; the options of plugins' methods are flags like others."""
    parser = Parser(prog="fedproc", description="Federated learning on non-IID image data, built around FedProc.")
    version = f"fedproc {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    parser.add_argument(
        "--version", action="version", version=version, help="show the versions, also of torch and Python"
    )
    parser.add_argument(DEBUG, action="store_true", help="with any command: show where an error came from")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    methods = all_methods(plugins)
    for part in (run, compare, data, federate):
        part.add(commands, methods)
    for other in (paper, report, listing, predict):
        other.add(commands)
    return parser


def execute(words: list[str], interrupt: Interrupt | None = None) -> int:
    """Run the command; lines are as wide as the terminal, or 100 characters where there is none."""
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    parsed = build_parser(_plugins(words)).parse_strictly(words or ["--help"])
    parsed.interrupt = interrupt
    code: int = parsed.command(parsed, PlainConsole(width=width, markup=False))
    return code


def _plugins(words: list[str]) -> list[Path]:
    """The files that --plugin names, which must be known before the parser is built."""
    found = []
    for place, word in enumerate(words):
        name, given, value = word.partition("=")
        if name == "--plugin" and (given or place + 1 < len(words)):
            found.append(Path(value if given else words[place + 1]))
    return found
