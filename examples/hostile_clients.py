"""Accuracy by the share of hostile clients, with the mean and with robust merges, FedAvg beside FedProc, on embedded
data; docs/merging.md shows what came out. Called again, it goes on where it was.

    python examples/hostile_clients.py hostile
    python examples/hostile_clients.py hostile --attack prototype-poisoning --strength 10
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

import fedproc

SETTING = {"data": "fashion-mini", "clients": 10, "beta": 0.5, "epochs": 1, "batch_size": 16, "lr": 0.02}
NAMES = {"fedavg": "FedAvg", "fedproc": "FedProc"}
CHANCE = 10.0  # %, which is also where a run that diverged is drawn, as a cross
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")


def variants(args: argparse.Namespace, share: float) -> dict[str, dict[str, Any]]:
    """One run of each method with each merge."""
    attack = {"attack": args.attack, "attackers": share, "attack_strength": args.strength} if share else {}
    named = f"{attack_name(args)} {share:g}" if share else "nobody hostile"
    return {
        f"{method} {merge} {named}": {"method": method, "merge": merge, **attack}
        for method in NAMES
        for merge in args.merges
    }


def attack_name(args: argparse.Namespace) -> str:
    return str(args.attack) if args.strength is None else f"{args.attack} x{args.strength:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--attack", default="sign-flip")
    parser.add_argument("--strength", type=float)
    parser.add_argument("--shares", type=float, nargs="+", default=[0, 0.1, 0.2, 0.3, 0.4])
    parser.add_argument("--merges", nargs="+", default=["mean", "median", "multi-krum"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--workers", default="auto")
    args = parser.parse_args()
    if args.strength is None and args.attack == "sign-flip":
        args.strength = 4.0  # once as far, four hostile clients of ten only slow the others down

    found: dict[tuple[str, str], list[float]] = {}
    for share in args.shares:
        given = {"rounds": args.rounds, "eval_every": args.rounds, "checkpoint_every": 1, **SETTING}
        asked = variants(args, share)
        fedproc.compare((), [0], args.out, variants=asked, workers=args.workers, **given)
        for label, values in asked.items():
            result = fedproc.open_run(args.out / label / "seed-0").result
            accuracy = 100 * result.get("final_accuracy", math.nan)  # which a run that diverged has not
            found.setdefault((values["method"], values["merge"]), []).append(accuracy)

    print(f"accuracy in %, {attack_name(args)}, by the share of hostile clients")
    print(f"{'':26}" + "".join(f"{100 * share:6.0f} %" for share in args.shares))
    for (method, merge), values in found.items():
        numbers = ("    none" if math.isnan(value) else f"{value:8.2f}" for value in values)
        print(f"{f'{NAMES[method]}, {merge}':26}" + "".join(numbers))
    draw(args, found).savefig(args.out / f"{attack_name(args).replace(' ', '-')}.svg", metadata={"Date": None})


def draw(args: argparse.Namespace, found: dict[tuple[str, str], list[float]]) -> plt.Figure:
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for panel, (method, title) in zip(panels, NAMES.items(), strict=True):
        for place, merge in enumerate(args.merges):
            shares, values = [100 * share for share in args.shares], found[method, merge]
            panel.plot(
                shares, [CHANCE if math.isnan(v) else v for v in values], "o-", ms=4, c=COLOURS[place], label=merge
            )
            panel.plot(shares, [CHANCE if math.isnan(v) else math.nan for v in values], "x", ms=9, c=COLOURS[place])
        panel.axhline(CHANCE, color="#bbbbbb", lw=1, ls=":")
        panel.set(title=title, xlabel=f"hostile clients of 10, % ({attack_name(args)})", ylim=(0, 100))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy, %")
    panels[1].legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
