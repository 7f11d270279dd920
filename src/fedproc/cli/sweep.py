"""`fedproc sweep`: a search for the best options of several methods, on validation samples."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fedproc.cli.parser import add_experiment_flags
from fedproc.cli.run import gathered
from fedproc.cli.sharing import add_workers, whole_numbers
from fedproc.cli.strict import Parser
from fedproc.cli.tables import print_table
from fedproc.comparison.overrides import read_variants
from fedproc.errors import InputError, RunError
from fedproc.methods.method import Method
from fedproc.methods.plugin import all_methods
from fedproc.methods.robust import ROBUST
from fedproc.simulation.workers.choice import parsed as parsed_workers
from fedproc.sweep.plan import HELD_OUT, SCORES
from fedproc.sweep.proposals import SEARCHES
from fedproc.sweep.ranking import winner
from fedproc.sweep.search import sweep
from fedproc.watchers.console import Display

EPILOG = f"""\
SPACE is a TOML file of options with the values to try; those in a method's table are that method's:

    lr = [0.01, 0.02, 0.05]
    calibrate = [0.0, 1.0]
    weight_decay = {{ from = 1e-6, to = 1e-3, log = true }}

    [fedproc]
    tau = [0.2, 1.0]

The first trial of each row is its defaults. --val-fraction is {HELD_OUT:g} where it is not given; the test set is never
looked at. Killed anywhere, the same command continues; with more --trials it goes on from those that are there.
"""


def add(commands: Any, methods: Mapping[str, type[Method]]) -> None:
    usage = "fedproc sweep SPACE --methods M ... --trials N [--seeds N ...] [--promote K:T:SEEDS] [--out FOLDER] [...]"
    parser: Parser = commands.add_parser("sweep", epilog=EPILOG, usage=usage)
    group = parser.add_argument_group("what to search")
    group.add_argument("space", type=Path, metavar="SPACE", help="TOML file of options with the values to try")
    group.add_argument("--methods", nargs="+", metavar="METHOD", default=[], help="a row of trials for each")
    group.add_argument(
        "--variants", type=Path, metavar="FILE", help="TOML file of named overrides, each a row of trials as well"
    )
    group.add_argument("--trials", metavar="N", help="trials of each row, the first at its defaults (grid: all points)")
    group.add_argument("--seeds", nargs="+", metavar="N", default=["100"], help="seeds of each trial; default: 100")
    group.add_argument(
        "--promote",
        action="append",
        default=[],
        metavar="K:T:SEEDS",
        help="the best K trials of each row go on as new runs of T rounds with other seeds, such as 2:100:101,102; can "
        "be given again",
    )
    group.add_argument(
        "--search",
        choices=SEARCHES,
        default="random",
        help="every point, balanced random draws, or Optuna's TPE (needs fedproc[sweep]); default: random",
    )
    group.add_argument("--search-seed", metavar="N", default="0", help="of the draws; default: 0")
    group.add_argument(
        "--batch", metavar="N", default="4", help="trials of each row that tpe asks for at once; default: 4"
    )
    group.add_argument(
        "--score",
        choices=SCORES,
        help="the validation accuracy that trials are ranked by; default: own where every row has models of clients' "
        "own, else final",
    )
    add_workers(group)
    place = parser.add_argument_group("folder")
    place.add_argument("--out", type=Path, default=Path("runs/sweep"), help="folder of the search; default: runs/sweep")
    place.add_argument("--config", type=Path, help="TOML file with the same names as the flags")
    add_experiment_flags(parser, without=("method", "seed", "data_seed", "model_seed"), methods=methods)
    parser.set_defaults(command=command)


def command(parsed: argparse.Namespace, console: Console) -> int:
    values = gathered(parsed)
    for name in ("methods", "seeds", "reference", "method", "seed"):
        if values.pop(name, None) is not None and parsed.config:
            raise InputError(f"--config {parsed.config}: {name}: belongs on the command line of a search")
    done = sweep(
        parsed.space,
        parsed.methods,
        whole_numbers("--seeds", parsed.seeds),
        parsed.out,
        trials=_number("--trials", parsed.trials) if parsed.trials is not None else None,
        promote=[_promotion(word) for word in parsed.promote],
        variants=read_variants(parsed.variants, {*all_methods(parsed.plugin or ()), *ROBUST})
        if parsed.variants
        else None,
        search=parsed.search,
        search_seed=_number("--search-seed", parsed.search_seed),
        batch=_number("--batch", parsed.batch),
        score=parsed.score,
        caution=partial(console.print, highlight=False, markup=False),
        watcher=Display(console),
        interrupt=parsed.interrupt,
        workers=parsed_workers(parsed.workers, parsed.cluster, parsed.shared_lock),
        **values,
    )
    from fedproc.sweep.outcome import WINNERS, compare_command, options, ranking

    print_table(console, ranking(done))
    if any(row.domains for row in done.plan.rows):
        print_table(console, options(done))
    short = {label: len(trials) for label, trials in done.rows.items() if len(trials) < (done.plan.trials or 0)}
    for label, count in short.items():
        console.print(f"{label}: {count} trials are all that its space holds", highlight=False)
    console.print(f"ranking.json, options.png and winners.toml are in {parsed.out}; the test of the winners:")
    console.print(f"    {compare_command(done.plan, parsed.out / WINNERS)}", highlight=False, soft_wrap=True)
    without = [label for label, trials in done.rows.items() if winner(trials) is None]
    if without:
        raise RunError(f"no trial finished: {', '.join(without)}; the reasons are in the runs' result.json")
    return 0


def _number(name: str, word: str) -> int:
    return whole_numbers(name, [word])[0]


def _promotion(word: str) -> tuple[int, int, list[int]]:
    parts = word.split(":")
    try:
        keep, rounds = int(parts[0]), int(parts[1])
        seeds = [int(seed) for seed in parts[2].split(",")]
    except (ValueError, IndexError):
        seeds = []
    if len(parts) != 3 or not seeds or keep < 1 or rounds < 1:
        raise InputError(f"--promote {word}: expected K:ROUNDS:SEED,SEED such as 2:100:101,102")
    return keep, rounds, seeds
