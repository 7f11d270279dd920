#!/usr/bin/env python3
"""fedproc against others on a CPU: a plain loop as public scripts have it, Flower's simulation, Apple's pfl.

    python benchmarks/rivals.py --data-dir DIR [--rounds N] [--envs DIR] [--out JSON]
    python benchmarks/rivals.py --data-dir DIR --device cuda --here --systems fedproc pfl --paper-rounds 0

With --device cuda the first job is done by fedproc and by pfl on one GPU, pfl with one process, as it gives each its
own GPU, and with all users' images there before it starts. --here takes packages from the environment that this is
run in, where none can be made.

Two jobs on CIFAR-10 with the paper's simple CNN. Everyone gets the same images, users, cohorts and initial weights,
in a process and (fedproc apart) an environment of its own, made once from benchmarks/rivals/*.txt; the runs follow
one another and are repeated in turn. A round's seconds are the median over rounds and repeats, without the first
round, which warms up, and the last, after which fedproc evaluates; beside it stands the fastest round, which other
work on the machine disturbs least. Ratios are to fedproc's within one repeat: the median over repeats, and the least
and the largest. Start-up is what a process takes from its launch to the end of its first round, less a usual round
(FedProc's first prototypes are in it).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from fedproc import Experiment
from fedproc.lanes import cores
from fedproc.protocol.plan import cohort
from fedproc.runs.provenance import environment
from fedproc.simulation.preparation import Library
from fedproc.simulation.session import Session

HERE = Path(__file__).resolve().parent / "rivals"
NOISE = 0.03  # of accuracy: repeats that differ in batch order alone were seen 0.013 apart
MOST_SECONDS = 900  # a run that takes longer counts as hung
# no reports to their makers, and no Ray cluster but their own
BY_THEMSELVES = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}


@dataclass(frozen=True)
class System:
    """A way to do a job: the script, what it is told besides folders, and whose environment it runs in."""

    name: str
    script: str
    words: tuple[str, ...] = ()
    env: str | None = None  # None: this very one
    launcher: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)

    def command(self, envs: Path | None, device: str, folder: Path, answer: Path) -> list[str]:
        """Without `envs` in this environment."""
        python = sys.executable if self.env is None or envs is None else str(envs / self.env / "bin" / "python")
        launcher = self.launcher if device == "cpu" else ()
        return [python, *launcher, str(HERE / self.script), str(folder), str(answer), *self.words]


ON_A_GPU = ("fedproc", "pfl")
FEDPROC = System("fedproc", "run_fedproc.py")
TORCHRUN = ("-m", "torch.distributed.run", f"--nproc-per-node={cores()}")
JOBS: dict[str, tuple[dict[str, Any], list[System]]] = {
    "pfl's CIFAR-10 set-up: FedAvg, 1,000 users x 50 images, cohort 50, 1 epoch, batch 10, no augmentation": (
        {
            "method": "fedavg",
            "clients": 1000,
            "partition": "iid",
            "sample": 0.05,
            "batch_size": 10,
            "lr": 0.1,
            "momentum": 0.0,
            "weight_decay": 0.0,
            "normalize_z": False,
            "augment": "none",
        },
        [
            FEDPROC,
            System("plain loop", "run_plain.py", ("vectorised",), "plain"),
            System("Flower", "run_flower.py", ("50",), "flower"),
            System("pfl", "run_pfl.py", (), "pfl", TORCHRUN, {"OMP_NUM_THREADS": "1"}),
        ],
    ),
    "the paper's: FedProc, 10 clients, beta 0.5, 50,000 images a round, 1 epoch, batch 64, crop and flip": (
        {"method": "fedproc", "clients": 10, "partition": "dirichlet", "beta": 0.5, "batch_size": 64, "lr": 0.01},
        [
            FEDPROC,
            System("plain loop, loss by sample", "run_plain.py", ("per-sample",), "plain"),
            System("plain loop, vectorised loss", "run_plain.py", ("vectorised",), "plain"),
        ],
    ),
}


@dataclass
class Row:
    """What a system was seen to do in one job, over the repeats."""

    system: str
    command: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    how: list[str] = field(default_factory=list)
    repeats: list[list[float]] = field(default_factory=list)  # seconds of the rounds that count
    load: list[float] = field(default_factory=list)  # of the machine before each repeat
    startup: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    not_run: str | None = None

    @property
    def seconds(self) -> list[float]:
        return [each for rounds in self.repeats for each in rounds]

    def add(self, launched: float, load: float, found: dict[str, Any]) -> None:
        ends = found["ends"]
        rounds = [after - before for before, after in pairwise(ends[:-1])]
        self.repeats.append(rounds)
        self.load.append(load)
        self.startup.append(ends[0] - launched - median(rounds))
        self.accuracy.append(found["accuracy"])
        self.loss.append(found["loss"])
        self.versions = found["versions"]
        if found["how"] not in self.how:
            self.how.append(found["how"])


def write_job(folder: Path, given: dict[str, Any]) -> None:
    """The job as files that need no fedproc to read, made with fedproc's own partition, cohorts and initial weights."""
    session = Session(Experiment(**given), Library())
    e, setting, images = session.experiment, session.setting, session.images
    folder.mkdir()
    for name, split in (("", images.train), ("test_", images.test)):
        np.save(folder / f"{name}images.npy", split.images)
        np.save(folder / f"{name}labels.npy", split.labels)
    np.savez(folder / "weights.npz", **{name: t.numpy() for name, t in setting.network.state_dict().items()})
    job = {
        **{name: getattr(e, name) for name in ("method", "batch_size", "lr", "momentum", "weight_decay", "augment")},
        "device": e.device,
        "classes": images.classes,
        "mean": setting.normalisation.mean,
        "std": setting.normalisation.std,
        "users": [data.indices.tolist() for data in session.clients],
        "cohorts": [cohort(session.plan, session.client_sizes, t) for t in range(e.rounds)],
        "alphas": [session.plan.method.settings(t).get("alpha", 0.0) for t in range(e.rounds)],
    }
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "experiment.json").write_text(json.dumps(given))


def prepare(env: str, envs: Path) -> str | None:
    """Make the environment unless it is there; why it cannot be made, if so."""
    wanted = HERE / f"{env}.txt"
    marker = envs / env / "installed.txt"
    if marker.exists() and marker.read_text() == wanted.read_text():
        return None
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(envs / env)],
        [str(envs / env / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(wanted)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return f"no environment, {' '.join(command[1:4])} failed: {_last(done.stderr or done.stdout)}"
    marker.write_text(wanted.read_text())
    return None


def launch(system: System, command: list[str], log: Path, here: bool) -> str | None:
    """Run to the end; why it failed, if it did. A run that hangs is ended with all its children."""
    inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if system.env is not None and not here:
        inherited.pop("PYTHONPATH", None)
    variables = {**inherited, **BY_THEMSELVES, **system.variables}
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=variables, start_new_session=True)
        try:
            process.wait(MOST_SECONDS)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"not done after {MOST_SECONDS} s"
    return f"exit code {process.returncode}: {_last(log.read_text())}" if process.returncode else None


def _last(text: str) -> str:
    """The last line that is more than a rule."""
    return next((line for line in reversed(text.splitlines()) if any(map(str.isalnum, line))), "no output")


def table(title: str, rows: list[Row]) -> Table:
    shown = Table(title=title, title_justify="left")
    for heading in ("", "version", "s per round", "ratio", "fastest", "ratio", "start-up, s", "accuracy, %", "loss"):
        shown.add_column(heading, justify="left" if heading in ("", "version") else "right")
    ours = next((row.repeats for row in rows if row.system == FEDPROC.name), [])
    for row in rows:
        if row.not_run is not None:
            shown.add_row(row.system, "not run")
            continue
        package, number = next(iter(row.versions.items()))
        shown.add_row(
            row.system,
            f"{package} {number}",
            f"{median(row.seconds):.3f}",
            spread([median(theirs) / median(own) for theirs, own in zip(row.repeats, ours, strict=False)]),
            f"{min(row.seconds):.3f}",
            spread([min(theirs) / min(own) for theirs, own in zip(row.repeats, ours, strict=False)]),
            f"{median(row.startup):.1f}",
            " ".join(f"{100 * accuracy:.1f}" for accuracy in row.accuracy),
            " ".join(f"{loss:.3f}" for loss in row.loss),
        )
    return shown


def spread(ratios: list[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else ""


def off(rows: list[Row]) -> list[str]:
    """Systems whose accuracy is further from fedproc's than noise explains."""
    ours = next((fmean(row.accuracy) for row in rows if row.system == FEDPROC.name and row.accuracy), None)
    if ours is None:
        return []
    return [row.system for row in rows if row.accuracy and abs(fmean(row.accuracy) - ours) > NOISE]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="folder with CIFAR-10's files")
    parser.add_argument("--rounds", type=int, default=50, help="of the first job: 0 or at least 3 (default 50)")
    parser.add_argument("--paper-rounds", type=int, default=4, help="of the second job: likewise (default 4)")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--systems", nargs="*", help="those to run, by name (default: all)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--here", action="store_true", help="make no environments: all packages are in this one")
    parser.add_argument("--envs", type=Path, default=Path(tempfile.gettempdir(), "fedproc-rivals"))
    parser.add_argument("--out", type=Path, default=Path("runs", "rivals.json"))
    asked = parser.parse_args()
    if {1, 2} & {asked.rounds, asked.paper_rounds}:
        parser.error(
            "--rounds and --paper-rounds: expected 0 or at least 3, since the first and the last are not counted"
        )
    if asked.device == "cuda" and (asked.paper_rounds or set(asked.systems or ["all"]) - set(ON_A_GPU)):
        parser.error(f"--device cuda: expected --paper-rounds 0 and --systems of {', '.join(ON_A_GPU)}")
    console = Console(width=140, highlight=False)
    known = environment(torch.device(asked.device), "", 0, 0, "fp32")
    machine = {name: known[name] for name in ("started", "command", "platform", "python", "packages", "commit")}
    if asked.device == "cuda":
        machine["gpu"] = torch.cuda.get_device_name()
    machine |= {"cpu": _cpu(), "cores": cores(), "load_before": os.getloadavg()[0]}
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; load average before the start "
        f"{machine['load_before']:.2f} (ratios of a busy machine are rough)"
    )
    envs = None if asked.here else asked.envs.absolute()
    chosen = {title: [s for s in every if s.name in (asked.systems or [s.name])] for title, (_, every) in JOBS.items()}
    wanted = {s.env for systems in chosen.values() for s in systems if s.env}
    reasons = {} if envs is None else {env: prepare(env, envs) for env in wanted}
    written: dict[str, Any] = {"machine": machine, "jobs": []}
    good = True
    for (title, (given, _)), rounds in zip(JOBS.items(), (asked.rounds, asked.paper_rounds), strict=True):
        systems = chosen[title]
        if not rounds:
            continue
        where = {"data": "cifar10", "data_dir": asked.data_dir, "device": asked.device}
        whole = {**given, **where, "rounds": rounds, "epochs": 1}
        rows = [Row(system.name, not_run=reasons.get(system.env or "")) for system in systems]
        with tempfile.TemporaryDirectory() as scratch:
            folder, answer, log = (Path(scratch, name) for name in ("job", "answer.json", "log.txt"))
            write_job(folder, {**whole, "eval_every": rounds})
            for repeat in range(asked.repeats):
                for system, row in zip(systems, rows, strict=True):
                    if row.not_run is not None:
                        continue
                    console.print(f"repeat {repeat + 1} of {asked.repeats}: {system.name} ...")
                    row.command = system.command(envs, asked.device, folder, answer)
                    launched, load = time.time(), os.getloadavg()[0]
                    row.not_run = launch(system, row.command, log, asked.here)
                    if row.not_run is None:
                        row.add(launched, load, json.loads(answer.read_text()))
        console.print(table(f"{title}, {rounds} rounds, {asked.repeats} times", rows))
        for row in rows:
            said = "; ".join(row.how) if row.not_run is None else f"not run: {row.not_run}"
            console.print(f"  {row.system}: {said}", markup=False)
        different = off(rows)
        good &= not different
        within = f"accuracy within {100 * NOISE:g} points of fedproc's"
        console.print(f"  {within}: {'NOT ' + ', '.join(different) if different else 'all'}\n")
        written["jobs"].append({"title": title, "experiment": whole, "rows": [asdict(row) for row in rows]})
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(written, indent=1))
    console.print(f"commands, versions and every round's seconds: {asked.out}")
    return 0 if good else 1


def _cpu() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "an unnamed processor"


if __name__ == "__main__":
    sys.exit(main())
