"""A whole federation on this machine: kits, a server and sites as processes of their own, a run and its report."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedproc.data import FEDERATION, fashion_mini
from fedproc.data.images import Images, Split
from fedproc.data.partition import Deal
from fedproc.data.sites import write_sites
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.federate import kits, log
from fedproc.federate.segment import Options
from fedproc.federate.session import Lost, Session
from fedproc.federate.supervisor import Display, Supervisor

RUN = re.compile(r"run-[0-9a-f]{8}(?:-(alone|fine-tuned)-[\dx]+)? ")
NAMES = ("north", "south", "west")
TRAINING, TESTING = 600, 10  # images of the embedded data that the sites share; test images beside are not needed
GIVEN: dict[str, Any] = {"rounds": 15, "epochs": 5, "batch_size": 16, "normalize": "measured", "smallest_class": 5}


def run_demo(
    out: Path, method: str, show: Callable[[str], None], display: Display, check: Callable[[], None]
) -> dict[str, Any]:
    """All of it in a new folder; returns the run's result."""
    if out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out}: already there; expected a new or empty folder")
    show(f"three sites with images of their own, dealt out unevenly: {out / 'images'}")
    folders = _deal(out / "images")
    port = _free_port()
    show(f"start-up kits: {out / 'kits'}")
    kits.init(out / "kits", "localhost", port, NAMES)
    with _processes(out, folders), _lines_of_sites(out, show):
        admin = kits.open_kit(out / "kits" / "admin", "admin")
        _await(admin, check)
        experiment = Experiment(method=method, data=FEDERATION, checkpoint_every=1, **GIVEN)
        options = Options(min_sites=2, timeout=120, join_timeout=120)
        return Supervisor(admin, experiment, options, out / "run", display, check).run()


def _deal(target: Path) -> dict[str, Path]:
    whole = fashion_mini.read()
    step = max(1, len(whole.train) // TRAINING)
    train = Split(whole.train.images[::step], whole.train.labels[::step])
    few = Images(whole.name, train, Split(whole.test.images[:TESTING], whole.test.labels[:TESTING]), whole.class_names)
    shares = Deal("dirichlet", len(NAMES), 1.0, 0, 30, 2, None).shares(train.labels, None)
    write_sites(few, shares, target, NAMES)
    return {name: target / f"site-{place}" for place, name in enumerate(NAMES, start=1)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _processes(out: Path, folders: dict[str, Path]) -> Iterator[None]:
    """The server and the sites, each as its own command."""
    commands: list[Sequence[str]] = [["server", str(out / "kits" / "server")]]
    threads = str(max(1, (os.cpu_count() or 1) // len(folders)))
    commands += [
        ["site", str(out / "kits" / name), "--data", str(path), "--threads", threads] for name, path in folders.items()
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": threads}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in commands:
            command = [sys.executable, "-m", "fedproc", "federate", *words]
            with (out / f"{Path(words[1]).name}.out").open("ab") as file:
                started.append(subprocess.Popen(command, stdout=file, stderr=file, env=environment))
        yield
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


@contextmanager
def _lines_of_sites(out: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Show what sites say, each with its name."""
    tails = {name: log.Tail(out / "kits" / name) for name in NAMES}
    over = threading.Event()

    def follow() -> None:
        while not over.wait(0.3):
            for name, tail in tails.items():
                for line in tail.lines():
                    if "evaluate" not in line:
                        said = RUN.sub(lambda found: f"{found[1]}, " if found[1] else "", line[20:])
                        show(f"{line[11:19]} {name:>6} | {said}")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _await(admin: kits.Kit, check: Callable[[], None]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        check()
        try:
            with Session(admin) as session:
                if set(NAMES) <= set(session.connected()):
                    return
        except Lost:
            pass
        time.sleep(0.5)
