"""Attack fedproc for so many minutes, and print the table of docs/reliability.md.

    python tests/attack/everything.py [ATTACK ...] [--minutes 60] [--seed N]

Exit code 1 if anything was lost, let in or ended in a traceback. Without --seed another one is taken each time, and
printed, so that what was found can be found again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import folders  # noqa: E402
import inputs  # noqa: E402
from tally import HEAD, Tally, forked  # noqa: E402

Attack = Callable[[Tally, Path, float, int], None]
ATTACKS: dict[str, tuple[str, Attack, float]] = {  # with the share of the time
    "kills": ("kill at a file operation", folders.kills, 4),
    "disks": ("full disk", folders.full_disks, 2),
    "damage": ("damaged file", folders.damages, 4),
    "payloads": ("hostile payload", inputs.payloads, 1),
    "configs": ("config", inputs.configs, 1),
    "commands": ("command line", inputs.command_lines, 3),
    "run-files": ("forged run file", inputs.run_files, 1),
    "images": ("image", inputs.images, 1),
    "archives": ("archive", inputs.archives, 1),
    "models": ("model file", inputs.models, 1),
    "figures": ("figure of a stranger", inputs.figures, 1),
}


def attacked(attack: Attack, tally: Tally, *about: Any) -> Tally:
    """An attack in a process of its own: what some of them train stays out of the one that forks."""
    attack(tally, *about)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parsed = parser.parse_args()
    chosen = parsed.attacks or list(ATTACKS)
    if unknown := set(chosen) - set(ATTACKS):
        parser.error(f"{', '.join(unknown)}: expected {', '.join(ATTACKS)}")
    print(f"seed {parsed.seed}, {parsed.minutes:g} minutes\n\n{HEAD}", flush=True)
    shares = sum(ATTACKS[name][2] for name in chosen)
    problems = []
    for name in chosen:
        what, attack, share = ATTACKS[name]
        tally = Tally(what)
        with tempfile.TemporaryDirectory(prefix="fedproc-attack-") as place:
            seconds = 60 * parsed.minutes * share / shares
            code, found = forked(partial(attacked, attack, tally, Path(place), seconds, parsed.seed), longest=0)
        tally = found or Tally(what, 1, problems=[f"{what}: the attack itself ended with {code}"])
        print(tally.row(), flush=True)
        problems += tally.problems
    for problem in problems:
        print(f"\n{problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
