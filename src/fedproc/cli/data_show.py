"""`fedproc data show` and `fedproc data split`: a partition on screen, as a figure, as folders."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedproc.cli.parser import add_experiment_flags, given
from fedproc.cli.strict import Parser
from fedproc.data.partition import BY_BETA, class_counts, heterogeneity
from fedproc.data.sites import write_sites
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.files import naming, write_file
from fedproc.methods.plugin import all_methods
from fedproc.runs.lock import expect_folder
from fedproc.simulation.preparation import Library, deal, site_names

MOST_COLUMNS = 12
MOST_ROWS = 50


def add_show(parser: Parser, plugins: Sequence[Path]) -> None:
    parser.add_argument("--out", type=Path, default=Path("partition.png"), help="picture; default: partition.png")
    parser.set_defaults(command=show_command)
    add_experiment_flags(parser, methods=all_methods(plugins))


def add_split(parser: Parser, plugins: Sequence[Path]) -> None:
    parser.add_argument("--out", type=Path, default=Path("sites"), help="new folder; default: sites")
    parser.set_defaults(command=split_command)
    add_experiment_flags(parser, methods=all_methods(plugins))


def show_command(parsed: argparse.Namespace, console: Console) -> int:
    if parsed.out.is_dir():
        raise InputError(f"--out {parsed.out}: a folder, expected the name of a picture")
    expect_folder(parsed.out.parent)
    from fedproc.report.heatmaps import draw_holdings  # matplotlib takes a while to import

    experiment = Experiment(**given(parsed))
    images = Library().images(experiment)
    counts = class_counts(deal(experiment, images), images.train.labels, images.classes)
    score = heterogeneity(counts)
    sites = site_names(experiment, images)
    console.print(_table(counts, images.class_names, sites))
    sizes = counts.sum(axis=1)
    beta = f", beta {experiment.beta:g}" if experiment.partition in BY_BETA else ""
    title = f"{images.name}: {experiment.partition}{beta}, {len(counts)} clients, data seed {experiment.data_seed}"
    console.print(
        f"{title}\n{sizes.min():,} to {sizes.max():,} samples per client; {100 * (counts == 0).mean():.1f} % of "
        f"(client, class) pairs empty; heterogeneity {score:.3f} (0: all alike, towards 1: no class at two clients)",
        highlight=False,
    )
    heading = f"{title}, heterogeneity {score:.3f}"
    with naming(parsed.out.parent):
        parsed.out.parent.mkdir(parents=True, exist_ok=True)
    write_file(parsed.out, draw_holdings(counts, images.class_names, heading, sites).save)
    console.print(f"drawn in {parsed.out}", highlight=False)
    return 0


def _table(counts: np.ndarray[Any, np.dtype[np.int64]], names: Sequence[str], sites: Sequence[str]) -> Table:
    table = Table(title="samples by client and class", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    shown = list(names) if len(names) <= MOST_COLUMNS else []
    table.add_column("site" if sites else "client", justify="left" if sites else "right", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("classes", justify="right", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    for client, row in enumerate(counts[:MOST_ROWS]):
        cells = [f"{count:,}" if count else "·" for count in row] if shown else []
        table.add_row(sites[client] if sites else str(client), *cells, str((row > 0).sum()), f"{row.sum():,}")
    if len(counts) > MOST_ROWS:
        table.add_row("…", *[""] * len(shown), "", f"{len(counts) - MOST_ROWS} more")
    return table


def split_command(parsed: argparse.Namespace, console: Console) -> int:
    experiment = Experiment(**given(parsed))
    images = Library().images(experiment)
    shares, sites = deal(experiment, images), site_names(experiment, images)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("images", total=len(images.train) + len(images.test))
        write_sites(images, shares, parsed.out, sites, lambda count: progress.advance(task, count))
    console.print(f"{len(shares)} sites and the test images are in {parsed.out}", highlight=False)
    return 0
