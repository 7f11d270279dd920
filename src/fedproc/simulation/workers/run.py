"""Runs many experiments: in this process, or over workers where there is enough to do for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from fedproc.assembly import resolve_device
from fedproc.errors import Failed, InputError, MethodError, RunError
from fedproc.experiment import Experiment
from fedproc.files import write_json
from fedproc.kernels import cpu
from fedproc.lanes import Share, cores
from fedproc.runs.folder import RunFolder
from fedproc.runs.keeper import Fresh
from fedproc.runs.saved import read_run
from fedproc.simulation.drive import Run, check_same, never_begun, run_all, said_of_kept
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.place import Place
from fedproc.simulation.preparation import Library
from fedproc.simulation.session import Session
from fedproc.simulation.watching import Nobody, Record, Watched, Watcher, headline, tell
from fedproc.simulation.workers import mps
from fedproc.simulation.workers.choice import Asked, Choice, free_memory, on_cpu, on_gpus, wants_mps
from fedproc.simulation.workers.cluster import RUNS, Cluster, expect_locks, show_folder, wait_for_locks
from fedproc.simulation.workers.clusters import ClusterJobs, connected
from fedproc.simulation.workers.distant import Job
from fedproc.simulation.workers.grouping import Group, estimated, grouped, groups_on_cpu
from fedproc.simulation.workers.images import MappedImages, shared
from fedproc.simulation.workers.messages import Message
from fedproc.simulation.workers.process import Process, Worker
from fedproc.simulation.workers.supervisor import DistantRun, Supervisor

FOLDER = "workers"  # of the output folder: logs, and workers.json
Asking = Mapping[str, tuple[Experiment, Path | None]]


def run_many(
    experiments: Asking,
    workers: Asked = 1,
    home: Path | None = None,
    *,
    fresh: Fresh = False,
    watcher: Watcher | None = None,
    interrupt: Interrupt | None = None,
    devices: Sequence[str] | None = None,
) -> list[Run]:
    """Run labelled experiments, each in its folder, in this process (1), over so many workers, or as many as pay
    (`auto`). What becomes of the runs is the same. Logs of workers go to a folder in `home`; `devices` are those that
    workers are spread over, otherwise all GPUs that the experiments may use.
    """
    watcher, interrupt, library = watcher or Nobody(), interrupt or Interrupt(), Library()
    if isinstance(workers, Cluster):
        return _on_cluster(experiments, workers, home, fresh, watcher, interrupt)
    if workers == 1 or not experiments:
        return run_all(experiments, fresh=fresh, watcher=watcher, interrupt=interrupt)
    if home is None or any(path is None for _, path in experiments.values()):
        if workers != "auto":
            raise InputError(f"--workers {workers}: needs --out, since workers go on from what is in the runs' folders")
        return run_all(experiments, fresh=fresh, watcher=watcher, interrupt=interrupt)
    check_same([experiment for experiment, _ in experiments.values()])
    with ExitStack() as ends:
        driver = _Driver(experiments, library, home / FOLDER, ends)
        choice = driver.choose(workers, devices, fresh)
        if choice.workers == 1:
            driver.dismiss()
            said = [] if choice.obvious else [f"one process: {choice.reason}"]
            noting = _Noting(watcher, said)
            return run_all(experiments, fresh=fresh, watcher=noting, interrupt=interrupt, library=library)
        return driver.run(choice, fresh, watcher, interrupt)


def _on_cluster(
    experiments: Asking, cluster: Cluster, home: Path | None, fresh: Fresh, watcher: Watcher, interrupt: Interrupt
) -> list[Run]:
    """Over jobs of a cluster that is there already, in folders that all its nodes see."""
    paths = [path for _, path in experiments.values() if path is not None]
    if home is None or len(paths) < len(experiments):
        raise InputError(f"--cluster {cluster}: needs --out, a folder that all nodes share")
    expect_locks(home, cluster.shared_lock)
    check_same([experiment for experiment, _ in experiments.values()])
    with ExitStack() as ends:
        driver = _Driver(experiments, Library(), home / FOLDER, ends)
        jobs = connected(cluster)
        ends.callback(jobs.close)
        choice = driver.choose_on(jobs, cluster, fresh)
        word = show_folder(home / FOLDER)
        wait_for_locks(paths)  # of a command that was killed
        return driver.run(choice, fresh, watcher, interrupt, lambda place: Job(jobs, place, home / FOLDER, word))


class _Noting:
    """Passes everything on, with something to say at the beginning."""

    def __init__(self, other: Watcher, said: Sequence[str]) -> None:
        self._other, self._said = other, said
        self.update, self.end = other.update, other.end

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        self._other.begin(runs, about, [*self._said, *notes])

    def noted(self, run: Watched) -> None:
        tell(self._other, run)


class _Driver:
    """Runs experiments over workers."""

    def __init__(self, experiments: Asking, library: Library, folder: Path, ends: ExitStack) -> None:
        self._experiments, self._library, self._folder, self._ends = experiments, library, folder, ends
        self._environment: dict[str, str | None] = {}  # what is different in workers'
        self._images: list[MappedImages] | None = None
        self._early: list[Process] = []  # workers that load what they need while it is still settled what they do
        self._broken: dict[str, MethodError] = {}
        self._runs: dict[str, DistantRun] = {}
        self._events: list[Record] = []
        self._kept: list[str] = []  # runs that --fresh does not start over

    def choose(self, asked: Asked, devices: Sequence[str] | None, fresh: Fresh) -> Choice:
        """How many workers; a daemon that they need is there then."""
        self._works = estimated(self._experiments, self._library, fresh)
        named = {experiment.device for experiment, _ in self._experiments.values()}
        if len(named) > 1:
            return Choice(1, f"the runs are to be on different devices ({', '.join(sorted(named))})")
        device = resolve_device(named.pop())
        self._on_gpu = device.type == "cuda"
        if devices is not None:
            self._on_gpu = any(name.startswith("cuda") for name in devices)
        if not self._on_gpu:
            choice = on_cpu(asked, self._works, cores(), free_memory())
            return replace(choice, devices=tuple(devices or (None,)))
        return on_gpus(asked, self._works, devices or _gpus(device), self._start_mps)

    def choose_on(self, jobs: ClusterJobs, cluster: Cluster, fresh: Fresh) -> Choice:
        """How many jobs of a cluster at a time."""
        self._works = estimated(self._experiments, self._library, fresh)
        named = {experiment.device for experiment, _ in self._experiments.values()}
        if len(named) > 1:
            raise InputError(
                f"--cluster {cluster}: expected the same --device for all runs, got {', '.join(sorted(named))}"
            )
        busy = sum(work.operations > 0 for work in self._works)
        choice, self._on_gpu = jobs.choose(named.pop(), cluster.workers, busy)
        return choice

    def _start_mps(self, count: int) -> str | None:
        """Why there is no MPS for so many workers, or None. They come up with it."""
        if mps.given():
            return mps.works(os.environ)
        if not wants_mps():
            return "FEDPROC_MPS is 0"
        try:
            daemon = mps.Daemon(self._folder)
            self._ends.callback(daemon.close)
            self._early = [self._process(number) for number in range(count)]
            daemon.wait()
        except mps.NoDaemon as error:
            return str(error)
        self._environment = daemon.environment
        return None

    def _process(self, number: int) -> Process:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._images is None:
            self._images = shared(self._library, [experiment for experiment, _ in self._experiments.values()])
            for mapped in self._images:
                self._ends.callback(mapped.close)
        made = Process(number, self._folder / f"worker-{number}.log", self._images)
        self._ends.callback(made.end)
        return made

    def dismiss(self) -> None:
        """There is nothing to do for workers."""
        for process in self._early:
            process.end()

    def run(
        self,
        choice: Choice,
        fresh: Fresh,
        watcher: Watcher,
        interrupt: Interrupt,
        hire: Callable[[Place], Worker] | None = None,
    ) -> list[Run]:
        """Over processes of this machine, or whomever `hire` finds, each of whom has a core and a whole GPU then."""
        runs = self._runs
        about = self._check(fresh, runs, choice)
        works = [work for work in self._works if work.label in runs]
        if not works:
            return [self._made(label) for label in self._experiments]
        here = cores() if hire is None else choice.workers
        each = max(1, here // choice.workers)
        if self._on_gpu:
            groups = grouped(works, choice.workers if hire is None else max(choice.workers, len(works) // RUNS))
        else:
            groups = groups_on_cpu(works, choice.workers, each)
        at_once = sum(sorted(len(group.labels) for group in groups)[-choice.workers :])
        places = choice.places(here, at_once, [Path(sys.argv[0]).name, *sys.argv[1:]])
        if hire is not None:
            places = [replace(place, share=Share(1)) for place in places]
        elif not self._on_gpu:
            cpu.missing()  # compiles the kernels once
        early = {process.number: process for process in self._early}

        def start(number: int) -> Worker:
            if hire is not None:
                return hire(places[number])
            made = early.pop(number, None) or self._process(number)
            made.begin(places[number], self._environment)
            return made

        def noted(event: Record) -> None:
            self._events.append({"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **event})
            self._write(choice, groups)

        supervisor = Supervisor(choice.workers, start, self._order, runs, watcher, interrupt, noted)
        try:
            watcher.begin(list(runs.values()), about, said_of_kept(self._kept))
            supervisor.work(groups)
        finally:
            supervisor.dismiss()
            watcher.end()
        return [self._made(label) for label in self._experiments]

    def _write(self, choice: Choice, groups: Sequence[Group]) -> None:
        """Have on record who was to train what, and what happened."""
        made = {**asdict(choice), "groups": [group.labels for group in groups], "events": self._events}
        write_json(self._folder / "workers.json", made)

    def _check(self, fresh: Fresh, runs: dict[str, DistantRun], choice: Choice) -> str:
        """Refuse what cannot be run or continued, with nothing changed yet; what is to start over is cleared then.
        Returns what there is to say of it all.
        """
        where = "cpu" if not self._on_gpu else ", ".join(name or "one GPU" for name in choice.devices)
        about = f"{choice.workers} workers{' under MPS' if choice.mps else ''} on {where}: {choice.reason}"
        folders: dict[str, RunFolder] = {}
        again: set[str] = set()
        try:
            for label, (experiment, path) in self._experiments.items():
                assert path is not None
                try:
                    session = Session(experiment, self._library, label, device="cpu")
                except MethodError as error:
                    self._broken[label] = error
                    continue
                if not runs:
                    about = headline(session.images, session.client_sizes, about)
                try:
                    again |= {label} if session.claim(path, fresh) else set()
                finally:  # one that is refused is taken, too
                    folders |= {label: session.folder} if session.folder is not None else {}
                records = [] if label in again else folders[label].metrics()
                runs[label] = DistantRun(label, session.rounds, session.evaluated_on, path, records)
            for label in again:
                folders[label].prepare(fresh=True)
            self._kept = [label for label in runs if fresh and label not in again]
        finally:
            for folder in folders.values():
                folder.close()
        return about

    def _order(self, group: Group) -> Message:
        runs = {}
        for label in group.labels:
            experiment, path = self._experiments[label]
            runs[label] = {"experiment": experiment.config(), "own": experiment.own.message(), "path": str(path)}
        return {"group": group.number, "runs": runs}

    def _made(self, label: str) -> Run:
        """A run as its folder has it."""
        experiment, path = self._experiments[label]
        if label in self._broken:
            return never_begun(experiment, label, self._broken[label])
        assert path is not None
        saved = read_run(path, f"remove {path} to have this run made again")
        if saved is None or not saved.result:
            raise RunError(f"{path}: has no result, although its worker said that it was done")
        ended = self._runs[label].ended
        trace = ended.trace if isinstance(ended, Failed) else ""
        return Run(experiment, label, saved.result, saved.metrics, path, trace=trace)


def _gpus(device: torch.device) -> list[str | None]:
    """All that torch sees, where none was named."""
    count = torch.cuda.device_count()
    if device.index is not None or count <= 1:
        return [None]
    return [f"cuda:{number}" for number in range(count)]
