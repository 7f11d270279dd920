"""All commands under one parser. What a command needs is loaded when it is asked for, so that help comes at once."""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from fedproc import __version__
from fedproc.cli import DEBUG
from fedproc.cli.strict import Parser
from fedproc.simulation.interrupt import Interrupt

# the commands that each module of cli/ adds, and what they do
COMMANDS = {
    "run": {"run": "run one experiment, or continue it"},
    "compare": {"compare": "methods side by side over several seeds"},
    "sweep": {"sweep": "search the best options of methods on validation samples"},
    "data": {"data": "show or write a partition; check or convert your own images"},
    "federate": {"federate": "train with sites on other machines that keep their images"},
    "paper": {"paper": "the paper's tables and figures; at full scale with the published number next to ours"},
    "report": {"report": "runs as one page with figures"},
    "listing": {"list": "list methods, data sets, networks or presets"},
    "predict": {
        "predict": "classify images with a trained model",
        "export": "write a trained model for use elsewhere",
    },
}
WITH_METHODS = ("run", "compare", "sweep")  # whose flags include the options of methods
OF_PARTS = ("data", "federate")  # of whose parts some do


class _Versions(argparse.Action):
    """Shows the versions; they are looked up when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *given: object) -> NoReturn:
        from importlib import metadata

        print(f"fedproc {__version__}, torch {metadata.version('torch')}, Python {platform.python_version()}")
        parser.exit()


def build_parser(plugins: Sequence[Path] = (), only: str | None = None) -> Parser:
    """Every command and every flag; the options of plugins' methods are flags like others. With `only`, of the other
    commands no more than their names and what they do.
    """
    parser = Parser(prog="fedproc", description="Federated learning on non-IID image data, built around FedProc.")
    parser.add_argument("--version", action=_Versions, nargs=0, help="show the versions, also of torch and Python")
    parser.add_argument(DEBUG, action="store_true", help="with any command: show where an error came from")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for module, summaries in COMMANDS.items():
        if only is not None and only not in summaries:
            for name, words in summaries.items():
                commands.add_parser(name, help=words)
        elif module in WITH_METHODS:
            from fedproc.methods.plugin import all_methods

            import_module(f"fedproc.cli.{module}").add(commands, all_methods(plugins))
        elif module in OF_PARTS:
            import_module(f"fedproc.cli.{module}").add(commands, plugins)
        else:
            import_module(f"fedproc.cli.{module}").add(commands)
    if only is None:
        parser._parsers()  # fills them all
    return parser


def execute(words: list[str], interrupt: Interrupt | None = None) -> int:
    """Run the command; lines are as wide as the terminal, or 100 characters where there is none."""
    width = shutil.get_terminal_size((100, 24)).columns if sys.stdout.isatty() else 100
    plugins, words = _plugins(words), words or ["--help"]
    parsed = build_parser(plugins, words[0]).parse_strictly(words, lambda: build_parser(plugins))
    parsed.interrupt = interrupt
    from fedproc.cli.console import PlainConsole  # here: help needs no rich

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
