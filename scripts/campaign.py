#!/usr/bin/env python3
"""The leaderboard's campaign, piece by piece, restartable.

    python scripts/campaign.py --data-dir DIR --out runs/campaign --pieces search-0.1 test-0.1 --seconds 560 --pack PACK
    python scripts/campaign.py --plan
    python scripts/campaign.py --out runs/home --restore PACK/*        # here or there: unpack what came back
    python scripts/campaign.py --out runs/home --keep COMMIT           # on a machine with git: into docs/results

Every piece is commands of `python -m fedproc`, which continue what is in --out; a piece that is done costs seconds.
Before --seconds are over the command under way is interrupted, its runs are saved, and what is left is said (exit code
3). PACK/<piece>.tar.xz has what is to be kept of a piece, also of one that was stopped; PACK/<piece>.unfinished.tar.gz
has the checkpoints of its unfinished runs, those furthest first, as many as fit. Both are cut into parts under 15 MiB
and go back into any --out by --restore. What docs/results has is not made again: a row that has a winner is not
searched, and a seed that a winner has is not tested.

search-BETA   eight trials of each open row, the best two again, as on the leaderboard's page
test-BETA     the winners' open seeds on the test images; of rows that are searched, in docs/results or in --out
again-BETA    tuned FedAvg's test seeds once more: to it rows of other commits are compared, and a drift would show
anchors       FedAvg and FedProc untuned at beta 0.1, seed 0
ceiling       central training, as it is and with a cosine learning rate, and FedMA at both betas, untuned, three seeds
many-BETA     the five best rows of BETA's tests and FedAvg with what won there, 100 clients of which 10 a round
small-BETA    the same rows with 2,000 images in all
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import leaderboard
import numpy as np
from leaderboard import BETAS, ROWS, SEEDS, TUNED

from fedproc import data
from fedproc.data.partition import dirichlet

ROOT = Path(__file__).parent.parent
PIECES = (
    *(f"{kind}-{beta}" for beta in BETAS for kind in ("search", "test", "again")),
    "anchors", "ceiling",
    *(f"{kind}-{beta}" for beta in BETAS for kind in ("many", "small")),
)  # fmt: skip
STOPPED = 3  # exit code
PART = 15 * 2**20 - 2**16
WEIGHTS = (".safetensors",)
STATE = ("checkpoint", "clients", "models")  # of a run, for continuing it
CENTRAL: dict[str, dict[str, object]] = {"central-cosine": {"method": "central", "lr_schedule": "cosine"}}


@dataclass(frozen=True)
class Scale:
    """The protocol, or the toy of it that is tried on a CPU."""

    data: tuple[str, ...]
    trials: int = 8
    search_rounds: int = 50
    rounds: int = 100
    keep: int = 2
    later: str = "101,102"
    seeds: tuple[int, ...] = SEEDS
    some: tuple[int, ...] = SEEDS[:5]
    three: tuple[int, ...] = SEEDS[:3]
    every: int = 5
    images: int = 2000
    clients: int = 10
    many: tuple[int, float] = (100, 0.1)
    more: tuple[str, ...] = ()
    together: int = 3  # rows of a test in a command

    def lanes(self, piece: str) -> str:
        """Clients of a run that train side by side."""
        if piece == "ceiling":
            return f"of {self.clients} lanes, of central training 1"
        return f"of {round(self.many[0] * self.many[1]) if piece.startswith('many') else self.clients} lanes"


TOY = Scale(
    ("--data", "fashion-mini"), trials=2, search_rounds=2, rounds=3, keep=1, later="101", seeds=SEEDS[:3],
    some=SEEDS[:2], three=SEEDS[:2], every=1, images=600, clients=3, many=(6, 0.34),
    more=("--epochs", "1"),
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One command of fedproc, where it writes, and its runs."""

    words: tuple[str, ...]
    home: Path
    runs: tuple[Path, ...] = ()
    beside: tuple[tuple[Path, Path], ...] = ()  # kept runs, and where the command finds them

    @property
    def left(self) -> int:
        return sum(not (run / "result.json").exists() for run in self.runs)

    @property
    def over(self) -> bool:
        """Whether its runs are there, and what was made of them."""
        return not self.left and any((self.home / name).exists() for name in ("comparison.json", "winners.toml"))


class Campaign:
    def __init__(
        self,
        out: Path,
        scale: Scale,
        workers: str,
        kept: Path,
        only: Sequence[str],
        best: Sequence[str],
        where: Path | None,
    ) -> None:
        self.out, self.scale, self.kept, self.only, self.best, self.where = out, scale, kept, only, best, where
        self._files: dict[Path, Callable[[], str]] = {}
        self._common = (*scale.data, *scale.more)
        self._workers = ("--workers", workers)

    # what there is to do

    def steps(self, piece: str) -> list[Step]:
        """The commands of a piece, in order; finished ones among them."""
        name, _, beta = piece.partition("-")
        match name:
            case "search":
                return self._search(piece, beta)
            case "test":
                return self._test(piece, beta)
            case "again":
                return self._again(piece, beta)
            case "anchors":
                words = ("--methods", "fedavg", "fedproc", *self._skew("0.1"))
                return [self._compare(piece, ["fedavg", "fedproc"], (0,), words, workers="1", every=1)]
            case "ceiling":
                return self._ceiling()
            case "many":
                clients, sample = self.scale.many
                words = ("--beta", beta, "--clients", str(clients), "--sample", str(sample))
                return [self._of_the_best(piece, beta, self.scale.some, words)]
            case "small":
                made = []
                for seed in self.scale.some:
                    words = ("--partition", "file", "--partition-file", str(self._few(beta, seed)))
                    made.append(self._of_the_best(piece, beta, (seed,), words))
                return made
        raise SystemExit(f"--pieces {piece}: expected some of {', '.join(PIECES)}")

    def rows(self, piece: str) -> list[str]:
        """The rows of the board that a search has, or that a test has winners of."""
        name, _, beta = piece.partition("-")
        known = self.kept_winners(beta)
        if name == "search":
            found = [row for row in ROWS if f"{row}{TUNED}" not in known]
            begun = {path.name for path in (self.out / piece).glob("*")}  # which goes on
            return [row for row in found if not self.only or row in self.only or row in begun]
        found = [row for row in ROWS if f"{row}{TUNED}" in {**known, **self._here(beta)}]
        return [row for row in found if not self.only or row in self.only]

    def kept_winners(self, beta: str) -> dict[str, dict[str, object]]:
        return leaderboard.winners(beta, self.kept)

    def _here(self, beta: str) -> dict[str, dict[str, object]]:
        path = self.out / f"search-{beta}" / "winners.toml"
        return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def _search(self, piece: str, beta: str) -> list[Step]:
        rows, s, home = self.rows(piece), self.scale, self.out / piece
        if not rows:
            return []
        special = tables(leaderboard.FOLDER / "rows.toml")
        chosen = {row: special[row] for row in rows if row in special}
        plain = [row for row in rows if row not in special]
        words = ["sweep", str(leaderboard.FOLDER / "space.toml")]
        words += ["--methods", *plain] if plain else []
        words += ["--variants", str(self._toml(f"{piece}.rows", chosen))] if chosen else []
        words += ["--trials", str(s.trials), "--seeds", "100", "--rounds", str(s.search_rounds), "--search-seed", "1"]
        words += ["--promote", f"{s.keep}:{s.rounds}:{s.later}", "--eval-every", str(s.every), *self._skew(beta)]
        runs = [home / row / f"trial-{n + 1}" / "rung-1" / "seed-100" for row in rows for n in range(s.trials)]
        later = []
        for row in rows:  # which trials go on is known once the first rung is over
            there = sorted((home / row).glob("trial-*/rung-2"))
            there += [home / row / "best" / f"rung-2-{n}" for n in range(s.keep - len(there))]
            later += [rung / f"seed-{seed}" for rung in there for seed in s.later.split(",")]
        return [self._step(words, home, (*runs, *later))]

    def _test(self, piece: str, beta: str) -> list[Step]:
        """A command for so many rows, whose runs end together; of a row that has some of its seeds already these are
        put beside and stay as they are.
        """
        won = {**self._here(beta), **self.kept_winners(beta)}
        kept, home = self.kept / leaderboard.setting(beta) / "runs", self.out / piece
        there: dict[str, list[str]] = {}  # the seeds of each open row that are kept
        for label in (f"{row}{TUNED}" for row in self.rows(piece)):
            found = [f"{label}/seed-{s}" for s in self.scale.seeds]
            of = [name for name in found if (kept / name / "result.json").exists()]
            if len(of) < len(found):
                there[label] = of
        steps, labels = [], list(there)
        for first in range(0, len(labels), self.scale.together):
            some = labels[first : first + self.scale.together]
            path = self._toml(f"{piece}.{'.'.join(some)}", {label: won[label] for label in some})
            words = ("--variants", str(path), *self._skew(beta), "--ccvr", "both")
            step = self._compare(piece, some, self.scale.seeds, words)
            beside = [name for label in some for name in there[label]]
            runs = tuple(run for run in step.runs if str(run.relative_to(home)) not in beside)
            steps.append(replace(step, runs=runs, beside=tuple((kept / name, home / name) for name in beside)))
        return steps

    def _again(self, piece: str, beta: str) -> list[Step]:
        won = {**self._here(beta), **self.kept_winners(beta)}.get(leaderboard.REFERENCE)
        if won is None:
            return []
        path = self._toml(f"{piece}.rows", {leaderboard.REFERENCE: won})
        words = ("--variants", str(path), *self._skew(beta))
        return [self._compare(piece, [leaderboard.REFERENCE], self.scale.seeds, words)]

    def _ceiling(self) -> list[Step]:
        made = []
        for beta in reversed(BETAS):
            words = ["--methods", "fedma", *self._skew(beta)]
            labels = ["fedma"]
            if beta == BETAS[-1]:  # all images at one place are the same at any beta
                words[1:2] = ["central", "fedma", "--variants", str(self._toml("ceiling.rows", CENTRAL))]
                labels = ["central", "fedma", *CENTRAL]
            made.append(self._compare(f"ceiling/beta{beta}", labels, self.scale.three, words))
        return made

    def _of_the_best(self, piece: str, beta: str, seeds: Sequence[int], words: Sequence[str]) -> Step:
        won = {**self._here(beta), **self.kept_winners(beta)}
        labels = [f"{row}{TUNED}" for row in ("fedavg", *(row for row in self.five(beta) if row != "fedavg"))]
        if missing := [label for label in labels if label not in won]:
            raise SystemExit(
                f"{piece}: no winner at beta {beta} yet of {', '.join(missing)}: search-{beta} comes first"
            )
        path = self._toml(f"{piece}.rows", {label: won[label] for label in labels})
        step = self._compare(piece, labels, seeds, ("--variants", str(path), *words))
        kept = self.kept_of(*piece.split("-"))
        beside = tuple((kept / run.relative_to(step.home), run) for run in step.runs)
        beside = tuple(pair for pair in beside if (pair[0] / "result.json").exists())
        mine = {here for _, here in beside}
        return replace(step, runs=tuple(run for run in step.runs if run not in mine), beside=beside)

    def kept_of(self, name: str, beta: str) -> Path:
        """Where the runs of a further setting are kept."""
        words = {"many": f"clients{self.scale.many[0]}", "small": f"images{self.scale.images}"}[name]
        return self.kept / f"cifar10-{words}-beta{beta}" / "runs"

    def five(self, beta: str) -> list[str]:
        """The best rows: those asked for, or of the highest mean difference to FedAvg in this beta's test runs."""
        if self.best:
            return list(self.best)
        finals: dict[str, dict[int, float]] = {}
        for home in (self.kept / leaderboard.setting(beta) / "runs", self.out / f"test-{beta}"):
            for path in home.glob("*/seed-*/result.json"):
                value = json.loads(path.read_text(encoding="utf-8")).get("final_accuracy")
                if value is not None:
                    seed = int(path.parent.name.removeprefix("seed-"))
                    finals.setdefault(path.parent.parent.name, {})[seed] = value
        base = finals.pop(leaderboard.REFERENCE, {})
        paired = {label: [v - base[seed] for seed, v in of.items() if seed in base] for label, of in finals.items()}
        ahead = {label.removesuffix(TUNED): sum(of) / len(of) for label, of in paired.items() if of}
        if len(ahead) < 5:
            raise SystemExit(f"many, small: {len(ahead)} rows are tested at beta {beta}; name the best by --best")
        return sorted(ahead, key=lambda row: -ahead[row])[:5]

    def _few(self, beta: str, seed: int) -> Path:
        """A partition file of some images in all, chosen by the seed, dealt out as at this beta."""

        def made() -> str:
            source = self.scale.data[self.scale.data.index("--data") + 1]
            labels = np.asarray(data.load(source, self.where, None, 0.2, seed).train.labels)
            chosen = np.sort(np.random.RandomState(seed).permutation(len(labels))[: self.scale.images])
            shares = dirichlet(labels[chosen], self.scale.clients, float(beta), seed)
            return json.dumps([chosen[share].tolist() for share in shares])

        path = self.out / f"partition-{beta}-{seed}.json"
        if not path.exists():
            self._files[path] = made
        return path

    def _skew(self, beta: str) -> tuple[str, ...]:
        clients = () if self.scale.clients == 10 else ("--clients", str(self.scale.clients))
        return ("--beta", beta, *clients)

    def _compare(
        self,
        place: str,
        labels: Sequence[str],
        seeds: Sequence[int],
        words: Sequence[str],
        workers: str = "",
        every: int = 0,
    ) -> Step:
        s, home = self.scale, self.out / place
        first = [
            "compare",
            "--seeds",
            *map(str, seeds),
            "--rounds",
            str(s.rounds),
            "--eval-every",
            str(every or s.every),
        ]
        runs = tuple(home / label / f"seed-{seed}" for label in labels for seed in seeds)
        return self._step([*first, *words], home, runs, workers)

    def _step(self, words: Sequence[str], home: Path, runs: Sequence[Path], workers: str = "") -> Step:
        last = ("--workers", workers) if workers else self._workers
        return Step((*words, *self._common, *last, "--out", str(home)), home, tuple(runs))

    def _toml(self, name: str, variants: dict[str, dict[str, object]]) -> Path:
        """A file of variants in --out."""
        lines = []
        for label, values in variants.items():
            lines += [f"[{json.dumps(label)}]", *_lines(values), ""]
        path = self.out / f"{name}.toml"
        self._files[path] = lambda: "\n".join(lines)
        return path

    def write(self) -> None:
        """The files that commands are given."""
        self.out.mkdir(parents=True, exist_ok=True)
        for path, made in self._files.items():
            path.write_text(made(), encoding="utf-8")
        self._files.clear()


def tables(path: Path) -> dict[str, dict[str, object]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _lines(values: dict[str, object]) -> list[str]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{json.dumps(name)}.{option}": each for option, each in value.items()}
        else:
            flat[name] = value
    return [f"{name} = {json.dumps(value)}" for name, value in flat.items()]


# doing it


def run(step: Step, log: Path, until: float) -> bool:
    """Run a command until it ends or the time is over; whether it ended by itself."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = [sys.executable, "-m", "fedproc", *step.words]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        stream.write(f"\n$ fedproc {shlex.join(step.words)}\n".encode())
        stream.flush()
        child = subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=stream, stderr=subprocess.STDOUT
        )
        try:
            code = child.wait(max(0.1, until - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as why:
            for number, seconds in ((signal.SIGINT, 30), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
                child.send_signal(number)
                try:
                    child.wait(seconds)
                    break
                except subprocess.TimeoutExpired:
                    continue
            if isinstance(why, KeyboardInterrupt):
                raise
            return False
    if code:
        print(f"exit code {code}; the end of {log}:\n{_end(log)}", flush=True)
        raise SystemExit(1)
    return True


def _end(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def work(campaign: Campaign, pieces: Sequence[str], seconds: float, margin: float, pack: Path | None) -> int:
    started = time.monotonic()
    until = started + seconds - margin
    for place, piece in enumerate(pieces):
        began, done = time.monotonic(), True
        for number in range(len(campaign.steps(piece))):
            step = campaign.steps(piece)[number]
            print(f"{piece}: {len(step.runs) - step.left} of {len(step.runs)} runs are there", flush=True)
            campaign.write()
            for kept, here in step.beside:
                shutil.copytree(kept, here, dirs_exist_ok=True)
            if not step.over:
                done = time.monotonic() < until and run(step, campaign.out / f"{piece}.log", until)
            if not done:
                break
        if pack is not None and (campaign.out / piece).exists():
            for path in packed(campaign, piece, pack):
                print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)
        print(f"{piece}: {'done' if done else 'stopped'} after {time.monotonic() - began:.0f} s", flush=True)
        if not done:
            for each in pieces[place:]:
                print(f"left: {said(campaign, each)}", flush=True)
            return STOPPED
    print(f"all done after {time.monotonic() - started:.0f} s")
    return 0


def said(campaign: Campaign, piece: str) -> str:
    """How many runs and lanes a piece has, and how many runs are open."""
    name = piece.partition("-")[0]
    lanes, later = campaign.scale.lanes(piece), ""
    try:
        steps = campaign.steps(piece)
    except SystemExit as error:
        return f"{piece}: {6 * len(campaign.scale.some)} runs {lanes}; as yet {str(error).partition(': ')[2]}"
    count, left = sum(len(step.runs) for step in steps), sum(step.left for step in steps)
    if name == "test":
        rest = [row for row in ROWS if row not in campaign.rows(piece) and (not campaign.only or row in campaign.only)]
        later = f", {len(rest) * len(campaign.scale.seeds)} more of rows without a winner" if rest else ""
    asked = dict.fromkeys(run.relative_to(campaign.out / piece).parts[0] for step in steps for run in step.runs)
    rows = f", rows: {' '.join(asked)}" if name in ("search", "test") else ""
    if name in ("many", "small"):
        rows = f", rows: fedavg {' '.join(campaign.five(piece.partition('-')[2]))}"
    return f"{piece}: {count} runs {lanes}, {left} open{later}; commands: {len(steps)}{rows}"


# bringing it back


def packed(campaign: Campaign, piece: str, pack: Path, most: int = 3) -> list[Path]:
    """What is to be kept of a piece, and the state of unfinished runs in up to so many parts."""
    pack.mkdir(parents=True, exist_ok=True)
    for old in pack.glob(f"{piece}.*"):
        old.unlink()
    out, home = campaign.out, campaign.out / piece
    name, _, beta = piece.partition("-")
    beside = {here for step in campaign.steps(piece) for _, here in step.beside}
    unfinished = {
        path.parent: _rounds(path.parent)
        for path in home.rglob("config.json")
        if not (path.parent / "result.json").exists()
    }
    files = [path for path in home.rglob("*") if _is_kept(path.relative_to(home))]
    files = [path for path in files if not {*unfinished, *beside} & {*path.parents}]
    files += [*out.glob(f"{piece}*.toml"), *(out.glob(f"partition-{beta}-*.json") if name == "small" else ())]
    made = _parts(pack / f"{piece}.tar.xz", _archive(out, files, "w:xz", preset=3))
    whole, fits = 0, []
    for each in sorted((run for run in unfinished if unfinished[run]), key=lambda run: -unfinished[run]):
        rounds = sorted((each / "checkpoint").glob("round-*"))
        inside = [path for path in each.rglob("*") if path.is_file() and not {*rounds[:-1]} & {*path.parents}]
        size = sum(path.stat().st_size for path in inside)
        if whole + size <= most * PART:
            whole += size
            fits += inside
    if fits:
        made += _parts(pack / f"{piece}.unfinished.tar.gz", _archive(out, fits, "w:gz", compresslevel=1))
    return made


def _rounds(run: Path) -> int:
    """How far an unfinished run is."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _is_kept(path: Path) -> bool:
    return not (path.suffix in WEIGHTS or {*path.parts} & {*STATE, "workers"} or path.name.startswith("."))


def _archive(top: Path, files: Iterable[Path], mode: str, **how: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode, **how) as archive:  # type: ignore[call-overload]
        for path in sorted(path for path in files if path.is_file()):
            archive.add(path, str(path.relative_to(top)))
    return stream.getvalue()


def _parts(path: Path, content: bytes) -> list[Path]:
    """One file, or several that follow each other."""
    pieces = [content[at : at + PART] for at in range(0, len(content), PART)]
    names = [path] if len(pieces) == 1 else [path.with_name(f"{path.name}.{n + 1:02}") for n in range(len(pieces))]
    for name, piece in zip(names, pieces, strict=True):
        name.write_bytes(piece)
    return names


def restore(archives: Sequence[Path], out: Path) -> None:
    """Unpack archives, parts of one after each other; a finished run is not replaced by its checkpoint."""
    whole: dict[str, bytes] = {}
    for path in sorted(archives):
        name = str(path).rstrip("0123456789").rstrip(".")
        whole[name] = whole.get(name, b"") + path.read_bytes()
    out.mkdir(parents=True, exist_ok=True)
    for name, content in sorted(whole.items()):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            members = [m for m in archive.getmembers() if not (_run(out / m.name) / "result.json").exists()]
            archive.extractall(out, members, filter="data")
            print(f"{name}: {len(members)} files into {out}", flush=True)


def _run(path: Path) -> Path:
    """The run that a file belongs to, or itself."""
    return next((each for each in path.parents if each.name.startswith("seed-")), path)


def keep(campaign: Campaign, commit: str, sitting: int) -> None:
    """Have keep_results.py put every piece in --out where it belongs in docs/results/leaderboard."""
    for piece in PIECES:
        if not (campaign.out / piece).exists():
            continue
        for step in campaign.steps(piece):
            for _, here in step.beside:
                shutil.rmtree(here, ignore_errors=True)
        name, _, beta = piece.partition("-")
        if name == "search" and (open_rows := _not_over(campaign.out / piece)):
            print(f"{piece}: left out, since its search is not over: {', '.join(sorted(open_rows))}", flush=True)
            continue
        home = campaign.kept / leaderboard.setting(beta or BETAS[0])
        target = {
            "search": _search_of(home, campaign.out / piece, sitting),
            "test": home / "runs",
            "again": home / f"again-{sitting}",
            "anchors": home / (f"anchors-{sitting}" if sitting > 1 else "anchors"),
            "ceiling": campaign.kept / "ceiling",
        }.get(name) or campaign.kept_of(name, beta)
        for source in sorted((campaign.out / piece).glob("beta*")) if name == "ceiling" else [campaign.out / piece]:
            there = target / source.name if name == "ceiling" else target
            words = [sys.executable, str(ROOT / "scripts" / "keep_results.py"), str(source), str(there)]
            subprocess.run(
                [*words, *([commit] if commit != "-" else [])], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
            )
            print(f"{source} -> {there}", flush=True)
        if name == "small":
            for path in campaign.out.glob(f"partition-{beta}-*.json"):
                shutil.copy(path, target.parent / path.name)


def _not_over(source: Path) -> set[str]:
    """The rows that a search has begun and has no winner of."""
    path = source / "winners.toml"
    won = {label.removesuffix(TUNED) for label in tables(path)} if path.exists() else set()
    return {trial.parent.name for trial in source.glob("*/trial-1")} - won


def _search_of(home: Path, source: Path, sitting: int) -> Path:
    """The folder that has rows of this search already, the first of all, or one of the sitting's number."""
    rows = {path.parent.name for path in source.glob("*/trial-1")}
    for path in sorted(home.glob("search*")):
        if rows & {each.name for each in path.iterdir()}:
            return path
    return home / (f"search-{sitting}" if (home / "search").exists() else "search")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder with CIFAR-10's files")
    parser.add_argument("--out", type=Path, default=Path("runs/campaign"), help="default: runs/campaign")
    parser.add_argument("--pieces", nargs="+", default=[], metavar="PIECE", help=f"in order, of {', '.join(PIECES)}")
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help="of searches and tests these alone")
    parser.add_argument("--best", nargs="+", default=[], metavar="ROW", help="of many and small; default: by the tests")
    parser.add_argument("--seconds", type=float, default=1e9, help="that all of it may take; default: no limit")
    parser.add_argument("--margin", type=float, default=45, help="of them for saving and packing; default: 45")
    parser.add_argument("--pack", type=Path, help="folder for archives of what is to be brought back")
    parser.add_argument(
        "--restore", nargs="+", type=Path, default=[], metavar="ARCHIVE", help="unpack into --out first"
    )
    parser.add_argument("--workers", default="auto", help="as of fedproc; default: auto")
    parser.add_argument("--keep", metavar="COMMIT", help="copy what is in --out to docs/results; -: without a commit")
    parser.add_argument(
        "--sitting", type=int, default=3, help="number for anchors and searches that are kept; default: 3"
    )
    parser.add_argument("--kept", type=Path, default=leaderboard.FOLDER, help="what is kept already")
    parser.add_argument(
        "--together", type=int, default=Scale.together, metavar="N",
        help="rows of a test in a command; when time is over, what earlier commands did is there whole; default: 3",
    )  # fmt: skip
    parser.add_argument("--plan", action="store_true", help="only say how many runs and lanes each piece has")
    parser.add_argument("--toy", action="store_true", help="embedded images, two or three rounds: to try all of it")
    given = parser.parse_args()
    scale = replace(TOY if given.toy else Scale(("--data", "cifar10")), together=given.together)
    if not given.toy and given.data_dir is not None:
        scale = replace(scale, data=(*scale.data, "--data-dir", str(given.data_dir.absolute())))
    out = given.out.absolute()
    campaign = Campaign(out, scale, given.workers, given.kept.absolute(), given.rows, given.best, given.data_dir)
    if given.restore:
        restore(given.restore, out)
    if given.keep:
        keep(campaign, given.keep, given.sitting)
    if given.plan:
        for piece in given.pieces or PIECES:
            print(said(campaign, piece))
        return 0
    if given.pieces and not given.toy and given.data_dir is None:
        parser.error("--data-dir is needed, or --toy")
    return work(campaign, given.pieces, given.seconds, given.margin, given.pack) if given.pieces else 0


if __name__ == "__main__":
    raise SystemExit(main())
