"""The command line. Exit codes: 0 done, 2 bad input, 1 failure, 130 interrupted."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from rich.console import Console

from fedproc.cli import compare, data, listing, run
from fedproc.cli.parser import Parser, width
from fedproc.errors import InputError, RunError


def build_parser() -> Parser:
    """Every command and every flag."""
    parser = Parser(prog="fedproc", description="Federated learning on non-IID image data, built around FedProc.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for part in (run, compare, listing, data):
        part.add(commands)
    return parser


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code; an interrupted one saves its runs and ends at once."""
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console(width=width())
    try:
        parsed = build_parser().parse_strictly(sys.argv[1:] if words is None else words)
        code: int = parsed.command(parsed, console)
        return code
    except InputError as error:
        return _complain(error, 2)
    except RunError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        print("fedproc: interrupted; the same command continues", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(130)  # lanes may be in the middle of a client's round, whose work is lost anyway
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _complain(error: Exception, code: int) -> int:
    print(f"fedproc: {error}", file=sys.stderr)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
