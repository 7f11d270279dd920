"""All commands under one parser."""

from __future__ import annotations

import platform
import shutil
import sys

import torch
from rich.console import Console

from fedproc import __version__
from fedproc.cli import compare, data, listing, paper, predict, report, run
from fedproc.cli.parser import Parser
from fedproc.methods.plugin import load_plugin


def build_parser() -> Parser:
    """Every command and every flag."""
    parser = Parser(prog="fedproc", description="Federated learning on non-IID image data, built around FedProc.")
    version = f"fedproc {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    parser.add_argument("--version", action="version", version=version, help="say which this is, with torch and Python")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for part in (run, compare, paper, report, listing, data, predict):
        part.add(commands)
    return parser


def execute(words: list[str]) -> int:
    """Do what the words say; lines are as wide as the terminal, or as a page where there is none."""
    _load_plugins(words)
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    parsed = build_parser().parse_strictly(words or ["--help"])
    code: int = parsed.command(parsed, Console(width=width, markup=False))
    return code


def _load_plugins(words: list[str]) -> None:
    """Read the files that --plugin names before the parser is built, so that their options are flags like others.

    The words stay as they are: the parser knows --plugin too.
    """
    for place, word in enumerate(words):
        name, given, value = word.partition("=")
        if name == "--plugin" and (given or place + 1 < len(words)):
            load_plugin(value if given else words[place + 1])
