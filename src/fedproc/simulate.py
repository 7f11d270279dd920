"""Drives the round loops of one or many experiments with one pool of lanes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from fedproc import interruption, kernels
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.lanes import Answer, Executor, Job, Kind, Task, choose, set_precision
from fedproc.lanes.stacked import StackedExecutor
from fedproc.lanes.streamed import StreamedExecutor
from fedproc.payload import Refused, check
from fedproc.preparation import Library
from fedproc.runs.provenance import environment
from fedproc.session import Session

Record = dict[str, Any]


class Watcher(Protocol):
    """Who wants to see the work go on."""

    def begin(self, sessions: Sequence[Session], executor: Executor) -> None: ...

    def update(self, session: Session) -> None: ...

    def end(self) -> None: ...


class Nobody:
    """Watches nothing."""

    def begin(self, sessions: Sequence[Session], executor: Executor) -> None: ...

    def update(self, session: Session) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True)
class Run:
    """A finished run: its headline numbers, one record a round, and its folder if it has one."""

    experiment: Experiment
    label: str
    result: Record
    metrics: list[Record]
    path: Path | None

    @property
    def seed(self) -> int:
        return self.experiment.seed


def run(
    experiment: Experiment, out: str | Path | None = None, *, fresh: bool = False, watcher: Watcher | None = None
) -> Run:
    """Run an experiment, or continue it where its folder left off; without `out` nothing is written."""
    return run_all({experiment.method: (experiment, Path(out) if out else None)}, fresh=fresh, watcher=watcher)[0]


def run_all(
    experiments: Mapping[str, tuple[Experiment, Path | None]], *, fresh: bool = False, watcher: Watcher | None = None
) -> list[Run]:
    """Run labelled experiments side by side, each in its folder. A run that diverges does not stop the others."""
    watcher = watcher or Nobody()
    library = Library()
    sessions: list[Session] = []
    executor: Executor | None = None
    try:
        for label, (experiment, _) in experiments.items():
            sessions.append(Session(experiment, library, label))
        _check(sessions)
        for session, (_, path) in zip(sessions, experiments.values(), strict=True):
            if path is not None:
                session.claim(path, fresh)
        for session in sessions:
            session.open(fresh)
        unfinished = [session for session in sessions if session.result is None]
        if unfinished:
            executor = executor_for(unfinished)
            _record(unfinished, executor)
            watcher.begin(sessions, executor)
            drive(unfinished, executor, watcher)
            _record(unfinished, executor, work_of(executor))
        return [
            Run(s.experiment, s.label, s.result or {}, s.records, s.folder.path if s.folder else None) for s in sessions
        ]
    finally:
        watcher.end()
        if executor is not None:
            executor.close()
        for session in sessions:
            session.close()


def _record(sessions: Sequence[Session], executor: Executor, more: Record | None = None) -> None:
    """Write down how the work was laid out, where runs have folders."""
    for session in sessions:
        if session.folder is not None:
            layout = (executor.name, executor.lanes, executor.threads, kernels.precision())
            made = {**environment(session.device, *layout), "runs_at_once": len(sessions)}
            begun = {"started": {**made, **(session.folder.environment() or {})}["started"]}
            session.folder.write_environment({**made, **begun, **(more or {})})


def work_of(executor: Executor) -> Record:
    """The share of lane-steps that trained somebody, and the most memory a GPU held, where there are such."""
    found: Record = {}
    if isinstance(executor, (StackedExecutor, StreamedExecutor)) and executor.steps_run:
        found["lane_use"] = executor.steps_worked / executor.steps_run
    if torch.cuda.is_available() and (peak := torch.cuda.max_memory_allocated()):
        found["peak_memory_bytes"] = peak
    return found


def _check(sessions: Sequence[Session]) -> None:
    """Refuse what cannot run, before any folder is touched."""
    for name in ("executor", "lanes", "precision"):
        wanted = {getattr(session.experiment, name) for session in sessions}
        if len(wanted) > 1:
            raise InputError(f"--{name}: expected the same for all runs, got {', '.join(sorted(map(str, wanted)))}")
    first, device = sessions[0].experiment, sessions[0].device
    made = choose(first.executor, first.lanes, None, [session.setting for session in sessions], 1)
    made.close()
    set_precision(first.precision, device, made.name)


def executor_for(sessions: Sequence[Session]) -> Executor:
    """What the experiments ask for; `auto` means what the interrupted runs had, where they all had the same."""
    first, device = sessions[0].experiment, sessions[0].device
    settings = [session.setting for session in sessions]
    befores = [_layout(session.folder.environment() if session.folder else None) for session in sessions]
    before = befores[0] if len(set(befores)) == 1 else None
    here = before is not None and before[0] == str(device) and first.executor in ("auto", before[1])
    if before is not None and here and first.lanes in ("auto", before[2]):
        made = choose(before[1], before[2], before[3], settings, before[2])
        if isinstance(made, StackedExecutor):
            made.fixed = first.lanes != "auto"
    else:
        made = choose(first.executor, first.lanes, None, settings, sum(session.cohort for session in sessions))
        now = (str(device), made.name, made.lanes, made.threads)
        for session, then in zip(sessions, befores, strict=True):
            if then is not None and then != now:
                session.notes.append(f"device, executor, lanes and threads were {then}, from here on {now}")
    set_precision(first.precision, device, made.name)
    return made


def _layout(environment: Record | None) -> tuple[str, str, int, int] | None:
    """Device, executor, lanes and threads that an environment.json records."""
    if environment is None:
        return None
    e = environment
    return str(e["device"]), str(e["executor"]), int(e["lanes"]), int(e["threads"])


def drive(sessions: Sequence[Session], executor: Executor, watcher: Watcher) -> None:
    """Round by round together: collect everyone's tasks, do them, hand the checked answers back.

    Training waits until everyone is ready to train, so that all of it shares the lanes.
    """
    with torch.cuda.device(sessions[0].device) if sessions[0].device.type == "cuda" else nullcontext():
        _drive(sessions, executor, watcher)


def _drive(sessions: Sequence[Session], executor: Executor, watcher: Watcher) -> None:
    try:
        waiting: list[tuple[Session, list[Task]]] = []
        for session in sessions:
            waiting += _next(session, (), watcher)
        while waiting:
            interruption.check()
            others = [(session, tasks) for session, tasks in waiting if tasks[0].kind is not Kind.TRAIN]
            now = others or waiting
            jobs = [session.job(task) for session, tasks in now for task in tasks]
            answers = iter(_checked(jobs, [s for s, tasks in now for _ in tasks], executor))
            if executor.notes:
                _pass_on(executor, sessions)
            following: list[tuple[Session, list[Task]]] = []
            for session, tasks in waiting:
                if others and tasks[0].kind is Kind.TRAIN:
                    following.append((session, tasks))
                else:
                    following += _next(session, [next(answers) for _ in tasks], watcher)
            waiting = following
    except KeyboardInterrupt:
        for session in sessions:
            session.save()
        raise


def _pass_on(executor: Executor, sessions: Sequence[Session]) -> None:
    """Hand what the executor noted to the runs, and record the lanes it has now."""
    for session in sessions:
        session.notes += executor.notes
    executor.notes.clear()
    _record(sessions, executor)


def _next(session: Session, answers: Sequence[Answer], watcher: Watcher) -> list[tuple[Session, list[Task]]]:
    done = len(session.records)
    tasks = session.advance(answers)
    if len(session.records) > done or tasks is None:
        watcher.update(session)
    return [] if tasks is None else [(session, tasks)]


def _checked(jobs: Sequence[Job], owners: Sequence[Session], executor: Executor) -> list[Answer]:
    """Answers that passed the guard, or say why not. The wall clock is shared out by how long each was at work."""
    began = time.perf_counter()
    outcomes = executor.execute(jobs)
    wall = time.perf_counter() - began
    busy = sum(sum(answer.seconds.values()) for answer, _ in outcomes)
    scale = wall / busy if busy else 0.0
    checked = []
    for (answer, kept), session in zip(outcomes, owners, strict=True):
        seconds = {name: spent * scale for name, spent in answer.seconds.items()}
        payload, refused = answer.payload, None
        try:
            if payload is None:
                raise Refused(answer.refused or "no answer")
            check(payload, answer.task.expects)
            session.store.commit(answer.task.client, answer.task.round, kept)
        except Refused as reason:
            payload, refused = None, str(reason)
        checked.append(Answer(answer.task, payload, refused, seconds))
    return checked
