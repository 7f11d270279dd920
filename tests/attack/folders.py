"""Attacks on run folders: a kill at every file operation, a full disk, damage to every file."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from conftest import ToyLibrary, contents, toy_experiment, toy_images, work
from operations import HALF, OPENED, Operation, out_of_order, watched
from tally import Tally, forked

from fedproc.data.sites import write_sites
from fedproc.errors import InputError, RunError
from fedproc.lanes import choose
from fedproc.report.gather import gather
from fedproc.runs import checkpoint
from fedproc.runs.model import load_model
from fedproc.runs.schema import read_config
from fedproc.simulation.drive import drive
from fedproc.simulation.session import Session

NEW_NAMESPACE = 0x00020000
LEAST = 3  # kills (one of each kind) and full disks, however little time there is
IMAGES = toy_images(classes=3, per_class=20)
RUNS: dict[str, dict[str, Any]] = {
    "fedproc": {"method": "fedproc", "rounds": 4, "checkpoint_every": 1, "epochs": 1, "clients": 3},
    "scaffold": {
        "method": "scaffold", "rounds": 4, "checkpoint_every": 2, "epochs": 1, "clients": 3, "client_memory": 0,
        "sample": 0.7,
    },
    "solo": {"method": "solo", "solo": {"epochs": 1}, "clients": 3, "keep_clients": True},
    "averaged": {"method": "fedavg", "rounds": 3, "epochs": 1, "clients": 3, "average_weights": 0.8, "eval_every": 2},
}  # fmt: skip


def some_runs(seconds: float, chance: random.Random) -> list[str]:
    """One of the runs where there are seconds only, all of them where there are minutes."""
    names = list(RUNS)
    chance.shuffle(names)
    return names[: max(1, int(seconds // 5))]


def whole_run(folder: Path, name: str) -> None:
    """One that nobody disturbs, in a process of its own."""
    apart(lambda: work(folder, IMAGES, **RUNS[name]))


def apart(work: Callable[[], object]) -> None:
    """Train in a child, so that this process may go on forking."""
    code, _ = forked(lambda: work() and None)
    assert code == 0, f"a child ended with {code}"


def outcome_of(folder: Path, name: str, whole: Path, fresh: bool = False) -> str:
    """Go on with a run: `fine` if it ends as the whole one did."""
    try:
        session = work(folder, IMAGES, fresh, **RUNS[name])
    except (InputError, RunError) as error:
        return f"refused: {error}"
    if session.result is None:
        return "no result"
    try:
        one, other = contents(whole), contents(folder)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # a damaged index, which `noticed` looks at
        timed = ("metrics.jsonl", "result.json", "environment.json")
        one, other = ({k: v for k, v in _bytes(each).items() if k not in timed} for each in (whole, folder))
    different = [each for each in sorted({*one, *other}) if one.get(each) != other.get(each)]
    different = [each for each in different if not noticed(folder, each, whole)]
    left = [str(path) for path in folder.rglob(".tmp-*")]
    return "fine" if not different and not left else f"silently different: {different} {left}"


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def noticed(folder: Path, name: str, whole: Path) -> bool:
    """Whether a file of a finished run that nobody looked at is refused once somebody does."""
    try:
        if name.endswith(".safetensors") and not name.startswith("checkpoint"):
            load_model(folder, name)
        elif name.startswith("checkpoint"):
            checkpoint._load(folder / Path(name).parent)
        elif name == "config.json":
            read_config(folder / name)
        else:
            return False
    except (InputError, RunError):
        return True
    return False


def in_child(folder: Path, name: str, whole: Path, fresh: bool = False) -> str:
    code, said = forked(lambda: outcome_of(folder, name, whole, fresh))
    return str(said) if code == 0 else f"exit {code}"


def kills(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Kill a run at its n-th file operation, and go on: the folder ends as if nothing had been. Of the runs that nobody
    disturbs, the order of the operations is looked at.
    """
    end, moments = time.monotonic() + seconds, random.Random(seed)
    points: list[tuple[str, bool, int, Operation]] = []
    chosen = some_runs(seconds, moments)
    for name in chosen:
        whole_run(place / f"whole-{name}", name)
        for fresh in (False, True):
            code, seen = forked(lambda name=name, fresh=fresh: recorded(place / f"count-{name}", name, fresh))
            assert code == 0, f"recording ended with {code}"
            tally.count("; ".join(out_of_order(seen)) or "fine", (name, fresh, "order"))
            points += [(name, fresh, number, operation) for number, operation in enumerate(seen, 1)]
    done = 0
    for name, fresh, number, operation in mixed(points, moments):
        if done >= LEAST and time.monotonic() > end:
            break
        folder = place / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        if fresh:
            shutil.copytree(place / f"whole-{name}", folder)
        code, _ = forked(lambda name=name, fresh=fresh, number=number, folder=folder: dies(folder, name, fresh, number))
        tally.count(
            in_child(folder, name, place / f"whole-{name}") if code == 9 else f"exit {code}, expected to be killed",
            (name, fresh, number, operation[:3]),
            may_refuse=False,
        )
        done += 1
    _split_in_order(tally, place / "sites")
    tally.note = f"{done:,} of {len(points):,} moments of {2 * len(chosen)} runs; the order of all operations"


def mixed(points: list[tuple[str, bool, int, Operation]], chance: random.Random) -> list[Any]:
    """In turn one before an operation, one after a file was opened, one in the middle of a write."""
    chance.shuffle(points)
    seen: Counter[str] = Counter()
    turns = []
    for point in points:
        kind = point[3].what if point[3].what in (OPENED, HALF) else ""
        turns.append((seen[kind], kind, point))
        seen[kind] += 1
    return [point for _, _, point in sorted(turns, key=lambda turn: turn[:2])]


def dies(folder: Path, name: str, fresh: bool, number: int) -> None:
    """Run until so many operations were seen."""
    count = 0

    def act(operation: Operation) -> None:
        nonlocal count
        count += 1
        if count == number:
            os._exit(9)

    with watched(folder, act):
        work(folder, IMAGES, fresh, **RUNS[name])


def recorded(folder: Path, name: str, fresh: bool) -> list[Operation]:
    """The file operations of a run."""
    seen: list[Operation] = []
    shutil.rmtree(folder, ignore_errors=True)
    if fresh:
        work(folder, IMAGES, **RUNS[name])
    with watched(folder, seen.append):
        work(folder, IMAGES, fresh, **RUNS[name])
    return seen


def _split_in_order(tally: Tally, out: Path) -> None:
    """What `fedproc data split` writes: its pictures are not synced, and docs/reliability.md says so."""

    def split() -> list[Operation]:
        seen: list[Operation] = []
        with watched(out, seen.append):
            write_sites(IMAGES, [np.arange(30), np.arange(30, 60)], out)
        return seen

    code, seen = forked(split)
    wrong = out_of_order(seen, lambda name: name.endswith(".png")) if code == 0 else [f"exit {code}"]
    tally.count("; ".join(wrong) or "fine", ("data split", "order"))


def full_disks(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Run on a disk that is full after so many kilobytes, or once a file was opened or half written (chance hardly ever
    meets small files), then on one with room again.
    """
    end, sizes = time.monotonic() + seconds, random.Random(seed)
    chosen = some_runs(seconds, sizes)
    points: dict[str, list[int]] = {}
    for name in chosen:
        whole_run(place / f"whole-{name}", name)
        _, seen = forked(lambda name=name: recorded(place / f"count-{name}", name, False))
        points[name] = [number for number, each in enumerate(seen, 1) if each.what in (OPENED, HALF)]
    while tally.tried < LEAST or time.monotonic() < end:
        name = sizes.choice(chosen)
        number = sizes.choice((0, sizes.choice(points[name])))
        whole = place / f"whole-{name}"
        most = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file()) * 2 // 1024
        size = 2 * most if number else sizes.randint(0, most) // 4 * 4
        code, said = forked(lambda case=(name, size, number), whole=whole: on_small_disk(place, *case, whole))
        if said == "no rights":
            tally.note = "no right to mount a small disk here"
            return
        tally.count(str(said) if code == 0 else f"exit {code}", (name, f"{size} KB", number), may_refuse=False)
    tally.note = (
        "real disks (tmpfs), full after 4 KB up to twice what a run takes or at one of its files, then given room"
    )


def on_small_disk(place: Path, name: str, size: int, number: int, whole: Path) -> str:
    """In a mount namespace of our own, which goes with this process; others take all room at the n-th operation."""
    mounted = place / "disk"
    mounted.mkdir(exist_ok=True)
    if ctypes.CDLL(None).unshare(NEW_NAMESPACE) != 0:
        return "no rights"
    quiet: dict[str, Any] = {"check": False, "capture_output": True}
    subprocess.run(["mount", "--make-rprivate", "/"], **quiet)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={max(4, size)}k", "none", str(mounted)], **quiet
    ).returncode:
        return "no rights"
    count = 0

    def fill(operation: Operation) -> None:
        nonlocal count
        count += 1
        if count == number:
            with suppress(OSError), (mounted / "others").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

    try:
        with watched(mounted / "run", fill):
            work(mounted / "run", IMAGES, **RUNS[name])
    except (RunError, InputError) as error:
        if str(mounted) not in str(error):
            return f"names no path: {error}"
    subprocess.run(["mount", "-o", "remount,size=1g", str(mounted)], **quiet)
    return outcome_of(mounted / "run", name, whole)


def stopped(folder: Path, name: str) -> None:
    """A run left before its last round."""
    session = Session(toy_experiment(**{"checkpoint_every": 2, **RUNS[name]}), ToyLibrary(IMAGES))
    session.claim(folder)
    session.open(False)

    class Enough(Exception):
        pass

    class Watch:
        def begin(self, *about: object) -> None: ...

        def update(self, run: Session) -> None:
            if len(run.records) >= run.rounds - 1:
                raise Enough

        def end(self) -> None: ...

    executor = choose("serial", 1, 1, [session.setting], 5)
    with suppress(Enough):
        drive([session], executor, Watch())
    executor.close()
    session.close()


def _flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def _zero(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = chance.randrange(len(content) + 1)
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    path.write_bytes(content)


def _link(path: Path, chance: random.Random) -> None:
    elsewhere = path.with_name(f"elsewhere-{path.name}")
    path.rename(elsewhere)
    path.symlink_to(elsewhere.name)


def _pipe(path: Path, chance: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path, random.Random], object]] = {
    "removed": lambda path, chance: path.unlink(),
    "emptied": lambda path, chance: path.write_bytes(b""),
    "cut": lambda path, chance: os.truncate(path, chance.randrange(path.stat().st_size + 1)),
    "bit": _flip,
    "zeroes": _zero,
    "longer": lambda path, chance: path.write_bytes(path.read_bytes() + chance.randbytes(20)),
    "noise": lambda path, chance: path.write_bytes(chance.randbytes(path.stat().st_size)),
    "null": lambda path, chance: path.write_text("null\n"),
    "list": lambda path, chance: path.write_text("[]\n"),
    "object": lambda path, chance: path.write_text("{}\n"),
    "deep": lambda path, chance: path.write_text("[" * 100_000),
    "link": _link,
    "pipe": _pipe,
    "folder": _folder,
}


def damages(tally: Tally, place: Path, seconds: float, seed: int) -> None:
    """Damage one file of a run that is over, or was left: it is noticed, or made good."""
    end, chance = time.monotonic() + seconds, random.Random(seed)
    cases: list[tuple[str, str, str, str]] = []
    for name in some_runs(seconds, chance):
        whole_run(place / f"whole-{name}", name)
        apart(lambda name=name: stopped(place / f"left-{name}", name))
        for state in ("whole", "left"):
            folder = place / f"{state}-{name}"
            files = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
            cases += [(name, state, file, damage) for file in files for damage in DAMAGES]
    chance.shuffle(cases)
    done = 0
    for name, state, file, damage in cases:
        if time.monotonic() > end:
            break
        folder = place / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(place / f"{state}-{name}", folder)
        DAMAGES[damage](folder / file, chance)
        tally.count(looked_at(folder), ("report", name, state, file, damage))
        tally.count(in_child(folder, name, place / f"whole-{name}"), (name, state, file, damage))
        done += 1
    tally.note = f"{done:,} of {len(cases):,} pairs of file and damage, each gone on with and looked at by the report"


def looked_at(folder: Path) -> str:
    try:
        for run in gather([folder]).runs:
            _ = run.partition, run.confusion, run.environment, run.client_names, run.status
    except InputError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "fine"
