"""Starts a run and sees it to its end: submits segments, watches them, submits the next after a failure or when a site
is back. Started again, it attaches to what is there.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedproc.errors import InputError, RunError
from fedproc.experiment import Experiment
from fedproc.federate.jobs import write_job
from fedproc.federate.kits import Kit, members
from fedproc.federate.segment import Options
from fedproc.federate.session import OVER, Lost, Session
from fedproc.files import write_json
from fedproc.runs.folder import differences
from fedproc.runs.schema import read_json

Record = dict[str, Any]
START = "start.json"
POLL = 0.5  # seconds between two questions to a running segment
ROLL_CALL = 2.0  # seconds between two looks at who is connected
PATIENCE = 3  # segments in a row that may fail without a round done
MOST_LOSSES = 100  # times that the line to the server may break in a run
OUTAGE = 600.0  # seconds that a server may be away
TRIES = 5  # questions to a segment that is listed, before it is taken for dead
BEGINNING = 180.0  # seconds that a segment may take to begin
LINGER = 30.0  # seconds that a segment may take to end


class Display(Protocol):
    """Who shows a run."""

    def say(self, text: str) -> None: ...

    def show(self, status: Record) -> None: ...


@dataclass
class Absence:
    """A site that is away from the segment: how often it was, and what the server last heard of it."""

    times: int = 0
    heard: float | None = None
    round: int = 0


@dataclass
class Supervisor:
    """A run from its first segment to its result, in `out`."""

    kit: Kit
    experiment: Experiment
    options: Options
    out: Path
    display: Display
    check: Callable[[], None]
    wait: float = 60.0
    _absences: dict[str, Absence] = field(default_factory=dict)
    _past: set[str] = field(default_factory=set)  # segments that are over, though they may still be listed

    def run(self) -> Record:
        """To the end; returns the result."""
        run = self._claim()
        if (done_before := self._done()) is not None:
            return done_before
        failures, losses, done = 0, 0, -1
        while True:
            status: Record = {}
            with self._session() as session:
                try:
                    job = self._running(session, run) or self._submit(session, run)
                    status = self._watch(session, job)
                    self._past.add(job)
                    if status.get("outcome") != "ended":  # the next segment need not wait for the end of this one
                        collected = self._collect(session, job)
                        if collected is None and status.get("result") is not None:
                            raise RunError("the run is over, but was not brought here; run the same command again")
                        status = collected or status
                except Lost as error:
                    losses += 1
                    if losses > MOST_LOSSES:
                        raise
                    self.display.say(str(error))
                    time.sleep(1.0)
                    continue
            if status.get("error"):
                raise RunError(str(status["error"]))
            if status.get("outcome") == "stopped":
                raise RunError(f"stopped after round {status['round']}; everything is kept, the same command continues")
            if (result := status.get("result")) is not None and status.get("outcome") == result.get("status"):
                return dict(result)
            rounds = int(status.get("round", 0))
            failures = 0 if rounds > done else failures + (status.get("outcome") != "ended")
            done = max(done, rounds)
            possible = set(status.get("sites", ())) - set(status.get("declined", ()))
            hopeless = status.get("outcome") == "too few sites" and len(possible) < self.options.min_sites
            if failures >= PATIENCE or hopeless:
                raise RunError(_stopped(status, max(done, 0)))
            if status.get("outcome") != "ended":
                failed = status.get("outcome") or "the segment failed"
                self.display.say(f"{failed}; going on from round {max(done, 0) + 1}")

    def _done(self) -> Record | None:
        """The result, if it has been brought here already."""
        found = read_json(self.out / "result.json")
        early = self.experiment.patience is not None
        return found if found is not None and (early or found.get("rounds") == self.experiment.rounds) else None

    def _claim(self) -> str:
        """The run's name, which is in the folder from the first time on."""
        path = self.out / START
        config = self.experiment.config()
        if path.exists():
            known = json.loads(path.read_text(encoding="utf-8"))
            for name, old, new in differences(known["experiment"], config):
                if name != "rounds":
                    shown = "nothing" if old is None else old
                    raise InputError(f"--{name.replace('_', '-')} {new}: the run in {self.out} has {shown}; take that")
            return str(known["run"])
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise InputError(f"--out {self.out}: already there; expected a new folder, or one that `start` has begun")
        self.out.mkdir(parents=True, exist_ok=True)
        plain = (letter if letter.isascii() and letter.isalnum() else "-" for letter in self.out.name.lower())
        stem = "".join(plain).strip("-")[:40]
        run = f"{stem or 'run'}-{secrets.token_hex(4)}"
        write_json(path, {"run": run, "server": f"{self.kit.host}:{self.kit.port}", "experiment": config})
        return run

    def _session(self) -> Session:
        """A line to the server, which may be away for a while."""
        until, said = time.monotonic() + OUTAGE, False
        while True:
            self.check()
            try:
                return Session(self.kit)
            except Lost as error:
                if time.monotonic() > until:
                    raise
                if not said:
                    self.display.say(f"{error}; waiting for it")
                    said = True
                time.sleep(1.0)

    def _running(self, session: Session, run: str) -> str | None:
        """The segment that is under way, if one is; one that only seems to be is cleared away."""
        for job in reversed(session.jobs(run)):
            name, status = str(job["job_id"]), str(job.get("status", ""))
            if status.startswith(OVER) or name in self._past:
                continue
            if self._answers(session, name):
                self.display.say(f"attached to {run}, which is under way")
                return name
            session.abort(name)  # listed, but nobody answers: a server was killed
        return None

    @staticmethod
    def _answers(session: Session, job: str) -> bool:
        """Whether a segment says anything, asked patiently: a busy one may be slow."""
        for _ in range(TRIES):
            if session.ask(job) is not None:
                return True
            time.sleep(1.0)
        return False

    def _submit(self, session: Session, run: str) -> str:
        known = members(self.kit.path)
        there = self._await_sites(session, known)
        with tempfile.TemporaryDirectory(prefix="fedproc-job-") as place:
            options = self.options.model_dump(mode="json")
            folder = write_job(Path(place), run, self.experiment.config(), options, known, there)
            job = session.submit(folder)
        self.display.say(f"{run}: segment with {', '.join(there)}")
        return job

    def _await_sites(self, session: Session, known: Sequence[str]) -> list[str]:
        """The members that are connected: all of them, or enough once the time to wait is over."""
        began, said = time.monotonic(), ""
        while True:
            self.check()
            there = [site for site in known if site in session.connected()]
            if len(there) == len(known):
                return there
            missing = ", ".join(site for site in known if site not in there)
            enough = len(there) >= self.options.min_sites
            if enough and (
                time.monotonic() - began > self.wait or all(self._absent(s) for s in known if s not in there)
            ):
                return there
            if missing != said:
                self.display.say(f"waiting for {missing}")
                said = missing
            if not enough and time.monotonic() - began > max(self.wait, OUTAGE):
                raise RunError(
                    f"{len(there)} sites connected, fewer than --min-sites {self.options.min_sites}; missing {missing}"
                )
            time.sleep(0.5)

    def _absent(self, site: str) -> bool:
        """Whether a site was away before: nobody waits for it again, since a segment ends when it is back."""
        return site in self._absences

    def _watch(self, session: Session, job: str) -> Record:
        """Show a segment until it is over; end it early when a site is back."""
        status: Record = {}
        records: list[Record] = []
        silent, roll_call, ending = 0, time.monotonic() + ROLL_CALL, False
        while True:
            self.check()
            found = session.ask(job, do="status", since=len(records))
            if found is not None:
                silent = 0
                records += found.pop("records", [])
                status = {**found, "records": records}
                self.display.show(status)
                if status.get("outcome") or status.get("error"):
                    return status
            else:
                silent += 1
                if silent >= 3:
                    state = session.status(job)  # Lost ends this segment's watch
                    if state.startswith(OVER):
                        return status
                    if silent * POLL > (LINGER if status else BEGINNING):
                        session.abort(job)
                        return status
            if time.monotonic() > roll_call and status and not ending:
                roll_call = time.monotonic() + ROLL_CALL
                if back := self._back(session.connected(), status):
                    self.display.say(f"{', '.join(back)} back; a new segment begins after this round")
                    session.ask(job, do="end")
                    ending = True
            time.sleep(POLL)

    def _back(self, connected: dict[str, float], status: Record) -> list[str]:
        """Sites that are away from the segment and can be reached again. One that was away often waits longer."""
        found = []
        known = set(members(self.kit.path))
        added = {site: {"state": "away"} for site in known if site in connected and site not in status.get("sites", {})}
        for site, one in {**status.get("sites", {}), **added}.items():
            if one["state"] != "away" or site not in known:
                continue
            absence = self._absences.setdefault(site, Absence())
            heard = connected.get(site)
            if site in status.get("declined", ()) and not one.get("anew"):
                continue  # it said no, and nobody has changed that
            if absence.heard is None:
                absence.heard = heard if heard is not None else 0.0
                absence.times, absence.round = absence.times + 1, int(status.get("round", 0))
            there = heard is not None and (one.get("anew") or heard > absence.heard)
            if there and self._due(absence, status):
                absence.heard = None
                found.append(site)
        return found

    @staticmethod
    def _due(absence: Absence, status: Record) -> bool:
        return absence.times <= 1 or int(status.get("round", 0)) - absence.round >= 2 ** (absence.times - 1)

    def _collect(self, session: Session, job: str) -> Record | None:
        """Bring what the segment left, once it is over."""
        until = time.monotonic() + LINGER
        while not session.status(job).startswith(OVER):
            self.check()
            if time.monotonic() > until:
                session.abort(job)
                break
            time.sleep(0.3)
        try:
            return session.fetch(job, self.out)
        except Lost:
            return None


def _stopped(status: Record, done: int) -> str:
    """Why a run stops before its end, with what each site that is away said."""
    away = [f"{site}: {one['reason']}" for site, one in status.get("sites", {}).items() if one["state"] == "away"]
    reasons = f" ({'; '.join(away)})" if away else ""
    what = status.get("outcome") or "the segments fail"
    return f"stopped after round {done}: {what}{reasons}; everything is kept, the same command continues"
