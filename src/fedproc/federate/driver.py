"""Drives the round loop with sites on other machines, for one segment of a run: from the checkpoint that is there to
the last round, or until somebody ends it. What carries messages is a `Wire`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from fedproc.beside import ALONE, FINE_TUNED, alone, fine_tuned
from fedproc.errors import Diverged, Failed, InputError, MethodError, RunError
from fedproc.experiment import Experiment
from fedproc.federate.agreeing import Agreeing
from fedproc.federate.joining import Ready, heard, kind_of
from fedproc.federate.segment import Ended, Options, Outcome, Record, Segment, SiteStatus, Status, TooFew, Wire
from fedproc.federate.server_run import Agreement, ServerRun
from fedproc.lanes import Executor
from fedproc.protocol import codec
from fedproc.protocol.codec import Message
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.guard import Refused
from fedproc.protocol.plan import Progress
from fedproc.protocol.rounds import play
from fedproc.protocol.task import SERVER, Kind, Reply, Task
from fedproc.runs.provenance import environment

PATIENCE = 60.0  # seconds that another segment may hold the run's folder
REPEATS = 1  # of a round with too few good answers, before the segment ends


class Driver:
    """One segment of a run, and of the sites' training alone after it."""

    def __init__(
        self,
        home: Path,
        run: str,
        experiment: Experiment,
        options: Options,
        members: Sequence[str],
        wire: Wire,
        say: Callable[[str], None],
    ) -> None:
        self._home, self._run, self._experiment, self._options, self._say = home, run, experiment, options, say
        self.status = Status(run, experiment.method, experiment.rounds)
        self._segment = Segment(members, options, wire, say, self.status)
        self._kind = ALONE  # which of the runs beside is under way
        self._whole = True  # whether the run's model is shared by all
        self.records: list[Record] = []

    def end(self, stop: bool = False, now: bool = False) -> None:
        """Let the segment end after the round at hand, or `now`; or the run, until somebody starts it again."""
        self._segment.end(stop, now)

    def shown(self, since: int = 0) -> Record:
        """The status as JSON can hold it, with the records from `since` on."""
        with self._segment.lock:
            return {**self._segment.shown(), "records": self.records[since:]}

    def play(self) -> Outcome:
        """Go on with the run to its end, or to the end of the segment."""
        try:
            outcome = self._play_run(self._experiment, self._run, None)
            # what sites of a private run find beside would tell of their images
            if outcome == "finished" and self._experiment.method_type.federated and not self._private:
                outcome = self._play_beside()
            return self._over(outcome)
        except Ended:
            return self._over("stopped" if self._segment.stopped else "ended")
        except TooFew as error:
            self._say(str(error))
            return self._over("too few sites")

    @property
    def _private(self) -> bool:
        return self._experiment.privacy is not None

    def _over(self, outcome: Outcome) -> Outcome:
        with self._segment.lock:
            self.status.outcome, self.status.doing = outcome, outcome
        return outcome

    def _play_beside(self) -> Outcome:
        """The same sites, each by itself: alone from the same initial weights, as many epochs as it spent together, and
        from the trained model on.
        """
        e, epochs = self._experiment, self._options.fine_tune
        folder = self._home / self._run
        if self._options.alone:
            took_part = [set(record.get("took_part", ())) for record in self.records]
            self._play_one_beside(alone(e, len(self.records)), ALONE, str(len(self.records)), took_part)
        if epochs and self._whole:
            everyone = {client for record in self.records for client in record.get("took_part", ())}
            tuned = fine_tuned(e, folder / "model.safetensors", epochs)
            number = f"{len(self.records)}x{epochs}"
            self._play_one_beside(tuned, FINE_TUNED, number, [everyone] * epochs)
        return "finished"

    def _play_one_beside(self, experiment: Experiment, kind: str, number: str, took_part: list[set[int]]) -> None:
        self._say(f"each site now trains {kind.replace('-', ' ')}, for comparison")
        self._kind = kind
        try:
            self._play_run(experiment, f"{self._run}-{kind}-{number}", took_part)
        except (TooFew, InputError) as error:
            self._say(f"that was given up: {error}")

    def _play_run(self, experiment: Experiment, run: str, took_part: list[set[int]] | None) -> Outcome:
        keeper = self._prepared(experiment, run)
        try:
            with self._segment.lock:
                if took_part is None:
                    own = keeper.plan.shared is not None or keeper.plan.method.has_own
                    self.records, self._whole = keeper.records, not own
                    self.status.round, self.status.rounds = keeper.state.round, keeper.plan.rounds
            if keeper.result is not None:
                return self._finished(keeper, took_part is None)
            for line in keeper.plan.privacy.words() if keeper.plan.privacy is not None else ():
                self._say(line)
                self.status.notes.append(line)
            with keeper.executor() as executor:
                self._rounds(keeper, took_part, executor)
            return self._finished(keeper, took_part is None)
        finally:
            keeper.close()

    def _finished(self, keeper: ServerRun, main: bool) -> Outcome:
        result = keeper.result or {}
        if main:
            with self._segment.lock:
                self.status.result = result
        found: Outcome = result["status"]
        return found

    # -- before the first round ------------------------------------------------------------------------------------

    def _prepared(self, experiment: Experiment, run: str) -> ServerRun:
        """Sites invited, what all use agreed upon, the run's folder opened."""
        folder = self._home / run
        folder.parent.mkdir(parents=True, exist_ok=True)
        agreement = Agreement.load(folder)
        if agreement is None and run != self._run:
            agreement = Agreement.load(self._home / self._run)  # of the run that this one stands beside
        agreeing = Agreeing(self._segment, run, self._needed(run))
        joined = agreeing.invite(experiment, agreement)
        if agreement is None:
            agreement = agreeing.agree(experiment, joined)
        if run == self._run:  # others are made from it
            self._experiment = experiment = agreement.settled(experiment)
        agreement = agreeing.begin(experiment, agreement, joined)
        keeper = ServerRun(experiment, run, agreement, self._options.server_test)
        _claim(keeper, folder)
        try:
            agreement.save(folder)
            keeper.open(fresh=False)
            keeper.admit()
            if keeper.folder is not None and keeper.folder.environment() is None:
                made = environment(torch.device("cpu"), "federation", len(agreement.sites), 1, "fp32")
                keeper.folder.write_environment(made)
        except BaseException:
            keeper.close()
            raise
        return keeper

    def _needed(self, run: str) -> int:
        return self._options.min_sites if run == self._run else 1

    # -- rounds ----------------------------------------------------------------------------------------------------

    def _rounds(self, keeper: ServerRun, took_part: list[set[int]] | None, executor: Executor | None) -> None:
        repeats, main = 0, took_part is None
        while keeper.result is None:
            try:
                self._expect_there(keeper)
                for step in play(keeper.plan, keeper.state):
                    if isinstance(step, Progress):
                        self._note(keeper, step, main)
                        self._expect_there(keeper)
                        repeats = 0
                        continue
                    began = time.perf_counter()
                    self._exchange(keeper, step, took_part, executor)
                    _clock(step, time.perf_counter() - began)
                    if (lacking := self._lacking(step, main)) is not None:
                        repeats += 1
                        if repeats > REPEATS:
                            raise TooFew(f"round {keeper.state.round + 1}: {lacking}; {REPEATS + 1} times")
                        self._say(f"round {keeper.state.round + 1} is repeated: {lacking}")
                        break
                else:
                    keeper.finish()
            except Diverged as error:
                keeper.end(error, "diverged")
            except MethodError as error:
                keeper.end(Failed(keeper.state.round + 1, str(error)), "failed")

    def _expect_there(self, keeper: ServerRun) -> None:
        """Before a private round's cohort is drawn: whether the round takes place must not depend on who is in it."""
        if self._private and keeper.state.round < keeper.plan.rounds:
            self._segment.expect(len(self._segment.there()), "are there", self._options.min_sites)

    def _lacking(self, exchange: Exchange, main: bool) -> str | None:
        """What an exchange lacks to go on with, if anything. A private round is never repeated: another cohort in the
        place of one with too few answers would not be random.
        """
        if self._private and exchange.kind is Kind.TRAIN:
            return None
        needed = self._options.min_sites if exchange.kind is Kind.TRAIN and main else 1
        needed = min(needed, len({task.client for task in exchange.tasks}))
        each = len({task.client for task in exchange.tasks})
        good = Counter(dict.fromkeys(range(len(exchange.tasks) // each), 0))  # of each model that is asked about
        good.update(place // each for place in exchange.accepted)
        fewest = min(good.values())
        if fewest >= needed:
            return None
        reasons = "; ".join(f"{exchange.tasks[p].name}: {reason}" for p, reason in sorted(exchange.refused.items()))
        return f"{fewest} good answers, fewer than {needed} ({reasons})"

    def _note(self, keeper: ServerRun, progress: Progress, main: bool) -> None:
        record = progress.record
        sites = (record or {}).get("sites", {})
        keeper.note(progress)
        with self._segment.lock:
            for site, counts in sites.items():
                if main and site in self.status.sites:
                    self.status.sites[site].accuracy = sum(counts["correct"]) / max(1, sum(counts["total"]))
            if main:
                self.status.round = keeper.state.round
        if record is not None:
            accuracy = record.get("test_accuracy", record.get("val_accuracy"))
            shown = f", accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
            what = "round" if main else f"{self._kind}, round"
            self._say(f"{what} {record['round']} of {keeper.plan.rounds}: {record['clients']} sites{shown}")
        self._segment.check_ended(between_rounds=keeper.state.round < keeper.plan.rounds)

    def _exchange(
        self, keeper: ServerRun, exchange: Exchange, took_part: list[set[int]] | None, executor: Executor | None
    ) -> None:
        """Have all tasks of an exchange done: in waves, in which no site has more than one."""
        bodies: dict[int, bytes] = {}
        left = list(enumerate(exchange.tasks))
        with self._segment.lock:
            doing = {"train": "training", "evaluate": "evaluating"}.get(exchange.kind, str(exchange.kind))
            if took_part is not None:
                doing = f"{doing} {self._kind}, round {exchange.tasks[0].round + 1}"
            self.status.doing = doing
        while left:
            wave: dict[str, int] = {}
            messages: dict[str, Message] = {}
            rest = []
            for place, task in left:
                if task.client == SERVER:
                    assert executor is not None
                    exchange.take(place, keeper.server_site().do(task, executor))
                elif (reason := self._why_not(task, took_part)) is not None:
                    exchange.take(place, Reply(None, reason))
                elif task.name in wave:
                    rest.append((place, task))
                else:
                    body = bodies.setdefault(id(task.payload), codec.encode_tensors(task.payload.tensors))
                    wave[task.name], messages[task.name] = place, codec.encode_task(task, body)
            if messages:
                self._send(exchange, wave, messages)
            left = rest

    def _why_not(self, task: Task, took_part: list[set[int]] | None) -> str | None:
        if task.name in self._segment.away:
            return f"away: {self._segment.away[task.name]}"
        if task.name not in self._segment.sites:
            return "no longer a member"
        if took_part is not None and task.kind is Kind.TRAIN:
            there = took_part[task.round] if task.round < len(took_part) else set()
            if task.client not in there:
                return "took no part in this round of the federation"
        return None

    def _send(self, exchange: Exchange, wave: Mapping[str, int], messages: Mapping[str, Message]) -> None:
        began = time.monotonic()
        with self._segment.lock:
            for site in messages if not self._private else ():  # who is asked stays hidden
                self.status.sites[site].state = self.status.doing

        def take(site: str, answer: Message | str) -> None:
            place = wave[site]
            task = exchange.tasks[place]
            try:
                if isinstance(answer, str):
                    with self._segment.lock:  # not asked again in this segment, so that it costs one timeout
                        self._segment.away[site] = f"{answer}, in round {task.round + 1}"
                    raise Refused(answer)
                if kind_of(answer) == "declined":
                    heard(answer, Ready)  # says why
                reply = codec.decode_reply(answer)
            except Refused as reason:
                reply = Reply(None, str(reason))
            good = exchange.take(place, reply)
            with self._segment.lock:
                # of a private run no more than refusals, whose sites had no part in the round
                status = SiteStatus() if self._private else self.status.sites[site]
                status.seconds = time.monotonic() - began
                status.state = "answered" if good else "refused"
                if good and task.kind is Kind.TRAIN and task.run == self._run:
                    status.answered = task.round + 1
                if not good:
                    status.reason = exchange.refused[place]
                    self._segment.note_refusal(site, status.reason, task.round + 1)
            if not good:
                self._say(f"round {task.round + 1}: the answer of site {site} is refused: {exchange.refused[place]}")

        self._segment.wire.ask(messages, self._options.timeout, take)
        self._segment.check_ended()


def _claim(keeper: ServerRun, folder: Path) -> None:
    """Take the run's folder; the segment before may need a moment to let go of it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            keeper.claim(folder)
            return
        except RunError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _clock(exchange: Exchange, wall: float) -> None:
    """What sites spent becomes a share of the time that passed here, which their way over the network is part of."""
    busy = sum(exchange.seconds.values())
    if busy:
        exchange.share_clock(wall / busy)
    else:
        names = {Kind.TRAIN: "train", Kind.EVALUATE: "evaluation"}
        exchange.seconds = {names.get(exchange.kind, "prototypes"): wall}
