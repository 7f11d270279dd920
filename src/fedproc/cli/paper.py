"""`fedproc paper`: the paper's tables and figures, each from one command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproc.cli.sharing import add_workers, whole_numbers
from fedproc.cli.strict import Parser
from fedproc.errors import InputError, with_flags
from fedproc.paper.exhibits import EXHIBITS, SCALES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedproc.reproduction.exhibits import Request

NAMED = 4
MACHINE = ("data_dir", "device", "executor", "lanes", "precision")
EPILOG = """\
`fedproc paper list` lists tables and figures, their cost and what is done; `fedproc paper all` makes them all.
Runs are shared between tables and figures, continued after a stop, and skipped when they are done.
"""


def add(commands: Any) -> None:
    usage = "fedproc paper NAME [--scale full|small|tiny] [--seeds N ...] [--out DIR] [--import DIR ...]"
    parser: Parser = commands.add_parser("paper", epilog=EPILOG, usage=usage)
    parser.add_argument(
        "name", choices=["list", "all", *EXHIBITS], metavar="NAME", help=", ".join(["list", "all", *EXHIBITS])
    )
    parser.add_argument("--scale", choices=SCALES, default="small", help="default: small")
    parser.add_argument("--seeds", nargs="+", metavar="N", help="default: the scale's")
    parser.add_argument("--out", type=Path, default=Path("runs/paper"), help="default: runs/paper")
    parser.add_argument(
        "--import",
        nargs="+",
        type=Path,
        default=[],
        dest="imports",
        metavar="DIR",
        help="folders with finished runs, read where they are: name them each time",
    )
    parser.add_argument(
        "--only-done", action="store_true", help="run nothing: show what is done, leave gaps for the rest"
    )
    add_workers(parser)
    for name in MACHINE:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="X", help="as for `fedproc run`")
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    from fedproc.cli.tables import print_table  # all of these here: help needs none of them
    from fedproc.paper.identity import index
    from fedproc.reproduction.exhibits import Request, TooLittleDone, reproduce
    from fedproc.runs.lock import expect_folder
    from fedproc.simulation.workers.choice import parsed as parsed_workers
    from fedproc.watchers.console import Display

    workers = parsed_workers(parsed.workers, parsed.cluster, parsed.shared_lock)
    scale = SCALES[parsed.scale]
    expect_folder(parsed.out)
    seeds = tuple(whole_numbers("--seeds", parsed.seeds)) if parsed.seeds else scale.seeds
    if min(seeds) < 0:
        raise InputError(f"--seeds {' '.join(map(str, seeds))}: expected whole numbers from 0 on")
    if len(set(seeds)) != len(seeds):
        raise InputError(f"--seeds {' '.join(map(str, seeds))}: expected each seed once")
    shared = {name: getattr(parsed, name) for name in MACHINE if getattr(parsed, name) is not None}
    imported = index(parsed.imports)
    names = list(EXHIBITS) if parsed.name in ("list", "all") else [parsed.name]
    requests = [Request(EXHIBITS[name], scale, seeds, parsed.out, shared, imported) for name in names]
    if parsed.name == "list":
        console.print(listed(requests))
        console.print(f"{scale.name}: {scale.summary}", highlight=False)
        return 0
    for request in requests:
        try:
            done = reproduce(request, Display(console), parsed.only_done, parsed.interrupt, workers)
        except TooLittleDone as error:
            if parsed.name != "all":
                raise
            console.print(with_flags(error), highlight=False)
            continue
        print_table(console, done.grid.table())
        if done.differences is not None:
            print_table(console, done.differences)
        if done.missing:
            first = ", ".join(done.missing[:NAMED]) + (", ..." if len(done.missing) > NAMED else "")
            console.print(f"{len(done.missing)} of {len(request.wanted())} runs are not done: {first}", highlight=False)
        console.print(f"written: {', '.join(str(path) for path in done.files)}", highlight=False, soft_wrap=True)
    return 0


def listed(requests: list[Request]) -> Table:
    """What each exhibit is, its number in the paper, what it costs at this scale, and what is done of it."""
    from rich.table import Table

    table = Table()
    for name in ("name", "paper", "what", "runs", "million samples", "done"):
        table.add_column(name, justify="right" if name in ("runs", "million samples", "done") else "left")
    sizes = {"fashion-mini": 10_000, "tiny-imagenet": 100_000}
    for request in requests:
        wanted = request.wanted()
        work = 0.0
        for each in wanted.values():
            epochs = each.options.model_dump().get("epochs", each.rounds * each.epochs)
            work += sizes.get(each.data, 50_000) * epochs * each.sample
        done = sum(request.finished(path, each) is not None for path, each in wanted.items())
        exhibit = request.exhibit
        costs = (str(len(wanted)), f"{work / 1e6:,.1f}", f"{done} of {len(wanted)}")
        table.add_row(exhibit.name, exhibit.number, exhibit.title, *costs)
    return table
