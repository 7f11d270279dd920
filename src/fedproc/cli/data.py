"""`fedproc data`: a partition on screen, as a figure, as folders; images checked and converted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedproc.cli.strict import Parser


def add(commands: Any, plugins: Sequence[Path]) -> None:
    """The commands by name; what each needs is loaded when it is asked for."""
    parser: Parser = commands.add_parser("data")
    parts = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def show(part: Parser) -> None:
        from fedproc.cli.data_show import add_show

        add_show(part, plugins)

    def split(part: Parser) -> None:
        from fedproc.cli.data_show import add_split

        add_split(part, plugins)

    def check(part: Parser) -> None:
        from fedproc.cli import data_check

        data_check.add(part)

    def convert(part: Parser) -> None:
        from fedproc.cli import data_convert

        data_convert.add(part)

    words = "print and draw a partition"
    parts.add_parser("show", help=words, usage="fedproc data show [--option VALUE ...]", fill=show)
    words = "write a partition as image folders, one per site"
    parts.add_parser("split", help=words, usage="fedproc data split [--option VALUE ...]", fill=split)
    words = "find all that is wrong with your own images"
    parts.add_parser("check", help=words, usage="fedproc data check --data PATH [--option VALUE ...]", fill=check)
    words = "make PNG files and a CSV file of DICOM files"
    usage = "fedproc data convert DIR --out OUT [--option VALUE ...]"
    parts.add_parser("convert", help=words, usage=usage, fill=convert)
