"""Drives the round loops of one or many experiments with one pool of lanes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.lanes import Answer, Executor, Job, Task, choose
from fedproc.payload import Refused, check
from fedproc.runs.provenance import environment
from fedproc.session import Library, Session

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
        for label, (experiment, path) in experiments.items():
            session = Session(experiment, library, label)
            sessions.append(session)
            if path is not None:
                session.open(path, fresh)
        unfinished = [session for session in sessions if session.result is None]
        if unfinished:
            executor = _executor(unfinished)
            for session in unfinished:
                if session.folder is not None:
                    made = environment(session.device, executor.name, executor.lanes, executor.threads)
                    session.folder.write_environment(made)
            watcher.begin(sessions, executor)
            drive(unfinished, executor, watcher)
        return [
            Run(s.experiment, s.label, s.result or {}, s.records, s.folder.path if s.folder else None) for s in sessions
        ]
    finally:
        watcher.end()
        if executor is not None:
            executor.close()
        for session in sessions:
            session.close()


def _executor(sessions: Sequence[Session]) -> Executor:
    """What the experiments ask for; `auto` lanes are those of the interrupted run, where there was one."""
    first = sessions[0].experiment
    wanted = {(s.experiment.executor, s.experiment.lanes) for s in sessions}
    if len(wanted) > 1:
        raise InputError(f"--executor and --lanes: expected the same for all runs, got {sorted(map(str, wanted))}")
    before = sessions[0].folder.environment() if sessions[0].folder else None
    lanes: int | str = first.lanes
    threads: int | None = None
    settings = [session.setting for session in sessions]
    if before and lanes == "auto" and before.get("device") == str(sessions[0].device) and len(sessions) == 1:
        lanes, threads = int(before["lanes"]), int(before["threads"])
        kind = before["executor"] if first.executor == "auto" else first.executor
        if kind == before["executor"]:
            return choose(kind, lanes, threads, settings, lanes)
        lanes, threads = "auto", None
    return choose(first.executor, lanes, threads, settings, sum(session.cohort for session in sessions))


def drive(sessions: Sequence[Session], executor: Executor, watcher: Watcher) -> None:
    """Round by round together: collect everyone's tasks, do them, hand the checked answers back."""
    try:
        waiting: list[tuple[Session, list[Task]]] = []
        for session in sessions:
            waiting += _next(session, (), watcher)
        while waiting:
            jobs = [session.job(task) for session, tasks in waiting for task in tasks]
            answers = iter(_checked(jobs, [s for s, tasks in waiting for _ in tasks], executor))
            following: list[tuple[Session, list[Task]]] = []
            for session, tasks in waiting:
                following += _next(session, [next(answers) for _ in tasks], watcher)
            waiting = following
    except KeyboardInterrupt:
        for session in sessions:
            session.save()
        raise


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
            session.store.commit(answer.task.client, kept)
        except Refused as reason:
            payload, refused = None, str(reason)
        checked.append(Answer(answer.task, payload, refused, seconds))
    return checked
