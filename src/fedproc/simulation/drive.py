"""Drives the round loops of one or many experiments with one pool of lanes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedproc import kernels
from fedproc.errors import Failed, InputError, MethodError
from fedproc.experiment import Experiment
from fedproc.given import flag
from fedproc.kernels import cpu
from fedproc.lanes import Executor, Job, LaneError, Outcome, choose, resolve_precision, using_precision
from fedproc.lanes.stacked import StackedExecutor
from fedproc.lanes.streamed import StreamedExecutor
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.task import Kind
from fedproc.runs.keeper import Fresh, failed_result
from fedproc.runs.provenance import earlier, environment
from fedproc.simulation.interrupt import Interrupt
from fedproc.simulation.place import Place, alone
from fedproc.simulation.preparation import Library
from fedproc.simulation.session import Session
from fedproc.simulation.watching import Nobody, Watcher, few_steps, headline, unjudged
from fedproc.whereabouts import trace

Record = dict[str, Any]
SHOWN = 6  # labels in a line


@dataclass(frozen=True)
class Run:
    """A finished run: its headline numbers, one record per round, and its folder if it has one; else what was trained,
    with what a model file says of it.
    """

    experiment: Experiment
    label: str
    result: Record
    metrics: list[Record]
    path: Path | None
    notes: tuple[str, ...] = ()  # on files of a run that was over before
    models: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    about: Record = field(default_factory=dict, repr=False, compare=False)
    trace: str = field(default="", repr=False, compare=False)  # into a person's own code, where that ended it just now

    @property
    def seed(self) -> int:
        return self.experiment.seed

    @property
    def method(self) -> str:
        return self.experiment.method


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    fresh: bool = False,
    watcher: Watcher | None = None,
    interrupt: Interrupt | None = None,
) -> Run:
    """Run an experiment, or continue it where its folder left off; without `out` nothing is written."""
    asked = {experiment.method: (experiment, Path(out) if out else None)}
    return run_all(asked, fresh=fresh, watcher=watcher, interrupt=interrupt)[0]


def run_all(
    experiments: Mapping[str, tuple[Experiment, Path | None]],
    *,
    fresh: Fresh = False,
    watcher: Watcher | None = None,
    interrupt: Interrupt | None = None,
    library: Library | None = None,
    place: Place | None = None,
) -> list[Run]:
    """Run labelled experiments side by side in this process, each in its folder. A run that diverges or fails does not
    stop the others. `library` holds images that were read already; `place` is said to a process among others.
    """
    watcher, place = watcher or Nobody(), place or alone()
    library = library or Library()
    sessions: list[Session] = []
    broken: dict[str, MethodError] = {}  # runs whose method could not even be made
    try:
        for label, (experiment, _) in experiments.items():
            try:
                sessions.append(Session(experiment, library, label, place.device, place.save_after))
            except MethodError as error:
                broken[label] = error
        if sessions:
            check_same([session.experiment for session in sessions])
            _check(sessions)
        over = {s.label: s.claim(path, fresh) for s in sessions if (path := experiments[s.label][1]) is not None}
        for session in sessions:
            session.open(over.get(session.label, False))
        kept = [label for label, again in over.items() if fresh and not again]
        unfinished = [session for session in sessions if session.result is None]
        if unfinished:
            with executor_for(unfinished, place) as executor:
                _record(unfinished, executor, place)
                how = f"{executor.name} on {_device(sessions[0])}, {_lanes(executor)}"
                about = headline(sessions[0].images, sessions[0].client_sizes, how)
                notes, executor.notes = executor.notes, []
                watcher.begin(sessions, about, [*_said_first(sessions), *notes, *said_of_kept(kept)])
                drive(unfinished, executor, watcher, interrupt, place)
                _record(unfinished, executor, place, work_of(executor))
        elif kept:
            watcher.begin(sessions, said_of_kept(kept)[0], [])
        made = {
            s.label: Run(
                s.experiment,
                s.label,
                s.result or {},
                s.records,
                s.path,
                tuple(s.notes),
                s.models,
                s.assembly.description(),
                s.ended.trace if isinstance(s.ended, Failed) else "",
            )
            for s in sessions
        }
        for label, failure in broken.items():
            made[label] = never_begun(experiments[label][0], label, failure)
        return [made[label] for label in experiments]
    finally:
        watcher.end()
        for session in sessions:
            session.close()


def never_begun(experiment: Experiment, label: str, error: MethodError) -> Run:
    """A run whose method could not even be made."""
    result = failed_result(experiment.method, label, 1, str(error))
    return Run(experiment, label, result, [], None, trace=trace(error))


def _said_first(sessions: Sequence[Session]) -> list[str]:
    """What private runs promise, which sites nobody can judge, and who takes hardly any steps."""
    first = sessions[0]
    e, federated = first.experiment, first.experiment.method_type.federated
    lacking = unjudged(first.images) if federated and e.partition == "natural" else []
    epochs = e.epochs if federated else e.epochs * first.plan.rounds  # who trains alone has no rounds to speak of
    return [*promised(sessions), *lacking, *few_steps(first.client_sizes, first.plan.clients, e.batch_size, epochs)]


def promised(sessions: Sequence[Session]) -> list[str]:
    """What private runs promise, before they begin; the same words once."""
    said = []
    for session in sessions:
        if session.plan.privacy is not None:
            given = {name: getattr(session.experiment, name) for name in ("start_from", "encoder_weights")}
            said += session.plan.privacy.words()
            said += [f"privacy: {flag(name)} {path} counts as public" for name, path in given.items() if path]
    return list(dict.fromkeys(said))


def said_of_kept(labels: Sequence[str]) -> list[str]:
    """What there is to say of runs that --fresh does not start over."""
    shown = ", ".join(labels[:SHOWN]) + (", ..." if len(labels) > SHOWN else "")
    return [f"finished with these settings, and kept: {shown}; --fresh all starts them over, too"] if labels else []


def _device(session: Session) -> str:
    """The device, and why it is the CPU where it was not requested."""
    if session.experiment.device == "auto" and session.device.type == "cpu":
        return "cpu (torch sees no GPU)"
    return str(session.device)


def _lanes(executor: Executor) -> str:
    return "one client at a time" if executor.lanes == 1 else f"up to {executor.lanes} clients side by side"


def _record(sessions: Sequence[Session], executor: Executor, place: Place, more: Record | None = None) -> None:
    """Write down how the work was laid out, where runs have folders."""
    for session in sessions:
        if session.folder is not None:
            layout = (executor.name, executor.lanes, executor.threads, kernels.precision())
            made = {**environment(session.device, *layout), "runs_at_once": place.runs_at_once or len(sessions)}
            if place.command is not None:
                made["command"] = list(place.command)
            made |= {"workers": place.workers, **({"mps": True} if place.mps else {})}
            made["kernels"] = which_kernels(session.device)
            before = session.folder.environment()
            begun: Record = {"started": before.started} if before is not None and before.started else {}
            if before is not None and session.records and (others := earlier(before, made)):
                begun["earlier"] = others
            session.folder.write_environment({**made, **begun, **(more or {})})


def which_kernels(device: torch.device) -> str:
    """Whose kernels do the work: our own, or torch's alone."""
    reason = kernels.missing() if device.type == "cuda" else cpu.missing()
    return "own" if reason is None else "torch"


def work_of(executor: Executor) -> Record:
    """The share of lane-steps that trained somebody, and the most memory a GPU held, where there are such."""
    found: Record = {}
    if isinstance(executor, (StackedExecutor, StreamedExecutor)) and executor.steps_run:
        found["lane_use"] = executor.steps_worked / executor.steps_run
    if torch.cuda.is_available() and (peak := torch.cuda.max_memory_allocated()):
        found["peak_memory_bytes"] = peak
    return found


def check_same(experiments: Sequence[Experiment]) -> None:
    """Refuse experiments that are to be run in different ways."""
    for name in ("executor", "lanes", "precision"):
        wanted = {getattr(experiment, name) for experiment in experiments}
        if len(wanted) > 1:
            raise InputError(f"--{name}: expected the same for all runs, got {', '.join(sorted(map(str, wanted)))}")


def _check(sessions: Sequence[Session]) -> None:
    """Refuse what cannot run, before any folder is touched."""
    first, device = sessions[0].experiment, sessions[0].device
    made = choose(first.executor, first.lanes, None, [session.setting for session in sessions], 1)
    made.close()
    resolve_precision(first.precision, device, made.name, _dtype(sessions))


def _dtype(sessions: Sequence[Session]) -> str:
    """The longest that any of them has."""
    return max(session.experiment.dtype for session in sessions)


@contextmanager
def executor_for(sessions: Sequence[Session], place: Place | None = None) -> Iterator[Executor]:
    """What the experiments ask for; `auto` means what the interrupted runs had, where they all had the same beside as
    many workers.
    """
    place = place or alone()
    first, device = sessions[0].experiment, sessions[0].device
    settings = [session.setting for session in sessions]
    befores = [_layout(session) for session in sessions]
    before = befores[0] if len(set(befores)) == 1 else None
    here = before is not None and (before[0], before[5]) == (str(device), place.workers)
    here = here and before is not None and first.executor in ("auto", before[1])
    if before is not None and here and first.lanes in ("auto", before[2]):
        made = choose(before[1], before[2], before[3], settings, before[2], place.share)
        if isinstance(made, StackedExecutor):
            made.fixed = first.lanes != "auto"
    else:
        cohort = sum(session.cohort for session in sessions)
        made = choose(first.executor, first.lanes, None, settings, cohort, place.share)
    now = (str(device), made.name, made.lanes, made.threads, which_kernels(device), place.workers)
    for session, then in zip(sessions, befores, strict=True):
        if then is not None and then != now:
            names = ("device", "executor", "lanes", "threads", "kernels", "workers")
            changed = [(n, a, b) for n, a, b in zip(names, then, now, strict=True) if a != b]
            session.notes.append("; ".join(f"{name} was {old}, is {new}" for name, old, new in changed))
    try:
        with using_precision(resolve_precision(first.precision, device, made.name, _dtype(sessions))):
            yield made
    finally:
        made.close()


def _layout(session: Session) -> tuple[str, str, int, int, str, int] | None:
    """Device, executor, lanes, threads, kernels and workers that an interrupted run had."""
    found = session.folder.environment() if session.folder else None
    if found is None:
        return None
    kernels_then = found.kernels or which_kernels(session.device)
    return found.device, found.executor, found.lanes, found.threads, kernels_then, found.workers or 1


def drive(
    sessions: Sequence[Session],
    executor: Executor,
    watcher: Watcher | None = None,
    interrupt: Interrupt | None = None,
    place: Place | None = None,
) -> None:
    """Round by round together: collect everyone's tasks, do them, hand the answers back.

    Training waits until everyone is ready to train, so that all of it shares the lanes.
    """
    with torch.cuda.device(sessions[0].device) if sessions[0].device.type == "cuda" else nullcontext():
        _drive(sessions, executor, watcher or Nobody(), interrupt or Interrupt(), place or alone())


Waiting = list[tuple[Session, Exchange]]


def _drive(
    sessions: Sequence[Session], executor: Executor, watcher: Watcher, interrupt: Interrupt, place: Place
) -> None:
    try:
        waiting: Waiting = []
        for session in sessions:
            waiting += _next(session, watcher)
        while waiting:
            interrupt.check()
            others = [(session, exchange) for session, exchange in waiting if exchange.kind is not Kind.TRAIN]
            now = others or waiting
            _do(now, executor)
            if executor.notes:
                _pass_on(executor, sessions, place)
            following: Waiting = []
            for session, exchange in waiting:
                if others and exchange.kind is Kind.TRAIN:
                    following.append((session, exchange))
                else:
                    following += _next(session, watcher)
            waiting = following
    except KeyboardInterrupt:
        for session in sessions:
            session.save()
        raise


def _pass_on(executor: Executor, sessions: Sequence[Session], place: Place) -> None:
    """Hand what the executor noted to the runs, and record the lanes it has now."""
    for session in sessions:
        session.notes += executor.notes
    executor.notes.clear()
    _record(sessions, executor, place)


def _next(session: Session, watcher: Watcher) -> Waiting:
    done, over = len(session.records), session.result is not None
    exchange = session.advance()
    if len(session.records) > done or (exchange is None and (not over or session.ended is not None)):
        watcher.update(session)
    return [] if exchange is None else [(session, exchange)]


def _do(asked: Waiting, executor: Executor) -> None:
    """Do all tasks of these exchanges. A run whose method fails ends, and the others' tasks are done without it. The
    wall clock is shared out by how long each was at work.
    """
    began = time.perf_counter()
    left: list[tuple[Session, Exchange, int, Job]] = []
    for session, exchange in asked:
        try:
            left += [(session, exchange, place, job) for place, job in enumerate(session.jobs(exchange))]
        except Exception as error:
            session.fail_or_raise(error)
    while left:
        taken: set[int] = set()

        def take(at: int, outcome: Outcome, left: Any = left, taken: set[int] = taken) -> None:
            session, exchange, place, _ = left[at]
            taken.add(at)
            if session.result is None:
                try:
                    session.take(exchange, place, outcome)
                except Exception as error:
                    session.fail_or_raise(error)

        try:
            executor.execute([job for _, _, _, job in left], take)
            break
        except LaneError as error:
            failing = {id(left[at][0]) for at in error.places}
            ending = {id(s): s for s, _, _, _ in left if id(s) in failing}.values()
            owned = isinstance(error.error, MethodError) or any(s.from_own(error.error) for s in ending)
            if not failing or not owned:
                raise
            for session in ending:
                session.fail(error)
            left = [each for at, each in enumerate(left) if at not in taken and id(each[0]) not in failing]
    wall = time.perf_counter() - began
    busy = sum(sum(exchange.seconds.values()) for _, exchange in asked)
    for _, exchange in asked:
        exchange.share_clock(wall / busy if busy else 0.0)
