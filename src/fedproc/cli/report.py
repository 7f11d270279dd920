"""`fedproc report`: runs and the paper's tables as one page that works offline."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedproc.cli.strict import Parser
from fedproc.errors import InputError

EPILOG = """\
Takes run folders, comparisons and the folders of `fedproc paper`, or any folder that holds some. The page is
self-contained; tables are next to it as CSV, Markdown and LaTeX, figures as PNG and SVG.
"""


def add(commands: Any) -> None:
    usage = "fedproc report DIR ... [--out DIR] [--reference LABEL] [--columns HEAD ...] [--primary NAME ...] [--open]"
    parser: Parser = commands.add_parser("report", epilog=EPILOG, usage=usage)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders with runs")
    parser.add_argument("--out", type=Path, help="folder to write; default: report in the first DIR")
    parser.add_argument(
        "--reference",
        metavar="LABEL",
        help="the row that others are compared with; default: as given to `compare`, or fedavg",
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="HEAD",
        default=[],
        help="columns of the accuracies in LaTeX, as final 'last 10' 'nearest prototype'; default: all",
    )
    parser.add_argument(
        "--primary",
        nargs="+",
        metavar="NAME",
        default=[],
        help="comparisons, by their folders' names, whose final accuracies are the page's one primary family; the rest "
        "is called exploratory; default: the only setting there is, or none",
    )
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    from fedproc.report.contents import write_report  # matplotlib takes a while to import

    with console.status("") as status:
        out = parsed.out or parsed.folders[0] / "report"
        if parsed.out is None and out.is_symlink():
            raise InputError(f"{out}: a link, which is not followed; name the folder to write as --out")
        told = lambda doing: status.update(escape(doing))  # noqa: E731
        said: list[str] = []
        page = write_report(parsed.folders, out, parsed.reference, told, parsed.columns, parsed.primary, said.append)
    console.print(f"written: {page}, with its tables/ and figures/", highlight=False, soft_wrap=True)
    for sources in said:
        console.print(sources, highlight=False, soft_wrap=True, markup=False)
    if parsed.open:
        webbrowser.open(page.resolve().as_uri())
    return 0
