"""`fedproc report`: runs and the paper's tables as one page that works offline."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedproc.cli.parser import Parser
from fedproc.errors import InputError

EPILOG = """\
Takes run folders, comparisons and the folders of `fedproc paper`, or any folder that holds some. The page is
self-contained; tables are next to it as CSV, Markdown and LaTeX, figures as PNG and SVG.
"""


def add(commands: Any) -> None:
    usage = "fedproc report DIR ... [--out DIR] [--reference LABEL] [--open]"
    parser: Parser = commands.add_parser("report", help="runs as one page with figures", epilog=EPILOG, usage=usage)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders with runs")
    parser.add_argument("--out", type=Path, help="folder to write; default: report in the first DIR")
    parser.add_argument(
        "--reference",
        metavar="LABEL",
        help="the row that others are compared with; default: as given to `compare`, or fedavg",
    )
    parser.add_argument("--open", action="store_true", help="show it in the browser")
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    from fedproc.report.contents import write_report  # matplotlib takes a while to import

    with console.status("") as status:
        out = parsed.out or parsed.folders[0] / "report"
        if parsed.out is None and out.is_symlink():
            raise InputError(f"{out}: a link, which is not followed; name the folder to write as --out")
        page = write_report(parsed.folders, out, parsed.reference, lambda doing: status.update(escape(doing)))
    console.print(f"written: {page}, with its tables/ and figures/", highlight=False, soft_wrap=True)
    if parsed.open:
        webbrowser.open(page.resolve().as_uri())
    return 0
