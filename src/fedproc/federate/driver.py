"""Drives the round loop with sites on other machines, for one segment of a run: from the checkpoint that is there to
the last round, or until somebody ends it. What carries messages is a `Wire`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedproc.beside import ALONE, FINE_TUNED, alone, fine_tuned
from fedproc.data import FEDERATION, source_of
from fedproc.data.outline import batch_size_for, epochs_for
from fedproc.errors import Diverged, Failed, InputError, MethodError, RunError
from fedproc.experiment import Experiment
from fedproc.federate.joining import Agreed, Invitation, Joined, Look, Ready, Said, Seen, heard, kind_of, tell
from fedproc.federate.segment import Ended, Options, Outcome, Record, SiteStatus, Status, TooFew, Wire
from fedproc.federate.server_run import Agreement, ServerRun, agree_on_look, checked_seen, code_of, pooled_pixels
from fedproc.lanes import Executor
from fedproc.protocol import codec
from fedproc.protocol.codec import Message
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.guard import Refused
from fedproc.protocol.plan import Progress
from fedproc.protocol.rounds import play
from fedproc.protocol.task import SERVER, Kind, Reply, Task
from fedproc.runs.provenance import environment

REFUSALS = 50  # that are kept to be shown
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
        self._home, self._run, self._experiment, self._options = home, run, experiment, options
        self._wire, self._say = wire, say
        self._sites = [name for name in members if name in set(wire.sites())]
        self._away = {name: "not connected" for name in members if name not in self._sites}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._stop = self._now = False
        self._kind = ALONE  # which of the runs beside is under way
        self._whole = True  # whether the run's model is shared by all
        self.status = Status(run, experiment.method, experiment.rounds, sites={name: SiteStatus() for name in members})
        self.records: list[Record] = []

    def end(self, stop: bool = False, now: bool = False) -> None:
        """Let the segment end after the round at hand, or `now`; or the run, until somebody starts it again."""
        self._stop, self._now = self._stop or stop, self._now or now
        self._end.set()

    def shown(self, since: int = 0) -> Record:
        """The status as JSON can hold it, with the records from `since` on."""
        with self._lock:
            s = self.status
            sites = {name: dict(vars(site)) for name, site in s.sites.items()}
            for name, reason in self._away.items():
                away = {"state": "away", "reason": reason, "anew": self._wire.restarted(name)}
                sites[name] = {**sites[name], **away}
            return {**vars(s), "sites": sites, "refusals": s.refusals[-20:], "records": self.records[since:]}

    def play(self) -> Outcome:
        """Go on with the run to its end, or to the end of the segment."""
        try:
            outcome = self._play_run(self._experiment, self._run, None)
            # what sites of a private run find beside would tell of their images
            if outcome == "finished" and self._experiment.method_type.federated and not self._private:
                outcome = self._play_beside()
            return self._over(outcome)
        except Ended:
            return self._over("stopped" if self._stop else "ended")
        except TooFew as error:
            self._say(str(error))
            return self._over("too few sites")

    @property
    def _private(self) -> bool:
        return self._experiment.privacy is not None

    def _over(self, outcome: Outcome) -> Outcome:
        with self._lock:
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
            with self._lock:
                if took_part is None:
                    own = keeper.plan.shared is not None or keeper.plan.method.has_own
                    self.records, self._whole = keeper.records, not own
                    self.status.round, self.status.rounds = keeper.state.round, keeper.plan.rounds
            if keeper.result is not None:
                return self._finished(keeper, took_part is None)
            for line in keeper.plan.privacy.words() if keeper.plan.privacy is not None else ():
                self._say(line)
            with keeper.executor() as executor:
                self._rounds(keeper, took_part, executor)
            return self._finished(keeper, took_part is None)
        finally:
            keeper.close()

    def _finished(self, keeper: ServerRun, main: bool) -> Outcome:
        result = keeper.result or {}
        if main:
            with self._lock:
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
        joined = self._invite(experiment, run, agreement)
        if agreement is None:
            self._expect_enough(len(joined), "joined", run)
            agreement = self._agree(experiment, run, joined)
        if run == self._run:  # others are made from it
            self._experiment = experiment = agreement.settled(experiment)
        agreement = self._begin(experiment, run, agreement, joined)
        self._expect_enough(len(joined), "are ready", run)
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

    def _expect_enough(self, count: int, what: str, run: str) -> None:
        needed = self._options.min_sites if run == self._run else 1
        if count < needed:
            raise TooFew(f"{count} sites {what}, fewer than --min-sites {needed}")

    def _invite(self, experiment: Experiment, run: str, agreement: Agreement | None) -> dict[str, Joined]:
        known = list(agreement.class_names) if agreement is not None else self._options.classes
        plugin, network = code_of(experiment)
        here = {"encoder_weights": None, "start_from": None}  # files of the server, which sends what is in them
        config = {**experiment.config(), **here}
        asked = Invitation(run=run, experiment=config, classes=known, plugin_sha256=plugin, network_sha256=network)
        joined: dict[str, Joined] = {}
        for site, answer in self._tell(dict.fromkeys(self._there(), asked), Joined).items():
            strange = sorted(set(answer.classes) - set(known or answer.classes))
            if strange:
                self._leave_out(site, f"it has images of {strange[0]}, which is none of the classes")
            else:
                joined[site] = answer
        return joined

    def _agree(self, experiment: Experiment, run: str, joined: dict[str, Joined]) -> Agreement:
        names, channels, side = agree_on_look(joined, self._options.classes, experiment.image_size)
        look = Look(run=run, classes=list(names), channels=channels, side=side)
        seen = self._look(dict.fromkeys(joined, look))
        for site in set(joined) - set(seen):
            del joined[site]
        self._expect_enough(len(joined), "told about their images", run)
        normalisation = pooled_pixels(seen, channels)
        if experiment.normalize == "known":
            normalisation = source_of(FEDERATION).normalisation(channels)
        sizes = [max(1, sum(each.counts)) * (1 - experiment.val_fraction) for each in seen.values()]
        batch_size, epochs = experiment.batch_size, experiment.epochs
        following = self._options.following if experiment.privacy is None else frozenset()
        if "batch_size" in following:
            batch_size = batch_size_for(sizes)
        if "epochs" in following:
            epochs = epochs_for(sizes, batch_size, epochs)
        agreement = Agreement(names, channels, side, normalisation.mean, normalisation.std, batch_size, epochs)
        for site in (name for name in self._sites if name in seen):
            agreement = agreement.with_site(site, seen[site].counts, 0)
        about = f"{len(names)} classes ({', '.join(names)}), {side} x {side} pixels, {len(joined)} sites"
        self._say(f"{about}, {epochs} epochs of batches of {batch_size}")
        return agreement

    def _look(self, asked: Mapping[str, Look]) -> dict[str, Seen]:
        """What sites say of their images, as far as it can be true."""
        found = {}
        for site, answer in self._tell(asked, Seen).items():
            try:
                checked_seen(answer, asked[site].channels, len(asked[site].classes))
                found[site] = answer
            except Refused as reason:
                self._leave_out(site, str(reason))
        return found

    def _begin(
        self, experiment: Experiment, run: str, agreement: Agreement, joined: dict[str, Joined]
    ) -> Agreement:  # fmt: skip
        """Give each site its number; sites that join a run under way come after the others."""
        a = agreement
        new = [site for site in self._sites if site in joined and site not in a.sites]
        if new:
            look = Look(run=run, classes=list(a.class_names), channels=a.channels, side=a.side)
            for site, seen in self._look(dict.fromkeys(new, look)).items():
                a = a.with_site(site, seen.counts, 0)
        messages = {
            site: Agreed(
                run=run, classes=list(a.class_names), channels=a.channels, side=a.side, mean=list(a.mean),
                std=list(a.std), client=a.sites.index(site), batch_size=experiment.batch_size, epochs=experiment.epochs,
            )
            for site in joined
            if site in a.sites
        }  # fmt: skip
        ready = self._tell(messages, Ready)
        for site, answer in list(ready.items()):
            had = a.samples.get(site, 0)
            if had and had != answer.samples:
                self._leave_out(site, f"it has {answer.samples} training images, had {had} when the run began")
                del ready[site]
                continue
            a = a.with_site(site, a.counts[site], answer.samples)
            with self._lock:
                self.status.sites[site].samples = answer.samples
                self.status.sites[site].state = "ready"
        for site in set(joined) - set(ready):
            del joined[site]
        return a

    def _tell(self, messages: Mapping[str, Said], wanted: type[Any]) -> dict[str, Any]:
        """Messages before the rounds; whoever answers anything but what is wanted is left out of the segment."""
        found: dict[str, Any] = {}

        def take(site: str, answer: Message | str) -> None:
            try:
                if isinstance(answer, str):
                    raise Refused(answer)
                found[site] = heard(answer, wanted)
                with self._lock:
                    self.status.sites[site].state = "joining"
            except Refused as reason:
                if not isinstance(answer, str):
                    self.status.declined.append(site)
                self._leave_out(site, str(reason))

        if messages:
            self._wire.ask({s: tell(said) for s, said in messages.items()}, self._options.join_timeout, take)
            self._check_ended()
        return {site: found[site] for site in messages if site in found}

    def _leave_out(self, site: str, reason: str) -> None:
        self._say(f"site {site} is left out: {reason}")
        with self._lock:
            self._away[site] = reason
            self._note_refusal(site, reason)

    def _there(self) -> list[str]:
        return [site for site in self._sites if site not in self._away]

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
            self._expect_enough(len(self._there()), "are there", self._run)

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
        with self._lock:
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
        self._check_ended()
        if self._end.is_set() and keeper.state.round < keeper.plan.rounds:
            raise Ended

    def _check_ended(self) -> None:
        if self._wire.ended() or self._now:
            raise Ended

    def _exchange(
        self, keeper: ServerRun, exchange: Exchange, took_part: list[set[int]] | None, executor: Executor | None
    ) -> None:
        """Have all tasks of an exchange done: in waves, in which no site has more than one."""
        bodies: dict[int, bytes] = {}
        left = list(enumerate(exchange.tasks))
        with self._lock:
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
        if task.name in self._away:
            return f"away: {self._away[task.name]}"
        if task.name not in self._sites:
            return "no longer a member"
        if took_part is not None and task.kind is Kind.TRAIN:
            there = took_part[task.round] if task.round < len(took_part) else set()
            if task.client not in there:
                return "took no part in this round of the federation"
        return None

    def _send(self, exchange: Exchange, wave: Mapping[str, int], messages: Mapping[str, Message]) -> None:
        began = time.monotonic()
        with self._lock:
            for site in messages if not self._private else ():  # who is asked stays hidden
                self.status.sites[site].state = self.status.doing

        def take(site: str, answer: Message | str) -> None:
            place = wave[site]
            task = exchange.tasks[place]
            try:
                if isinstance(answer, str):
                    self._lose(site, task, answer)
                    raise Refused(answer)
                if kind_of(answer) == "declined":
                    heard(answer, Ready)  # says why
                reply = codec.decode_reply(answer)
            except Refused as reason:
                reply = Reply(None, str(reason))
            good = exchange.take(place, reply)
            with self._lock:
                # of a private run no more than refusals, whose sites had no part in the round
                status = SiteStatus() if self._private else self.status.sites[site]
                status.seconds = time.monotonic() - began
                status.state = "answered" if good else "refused"
                if good and task.kind is Kind.TRAIN and task.run == self._run:
                    status.answered = task.round + 1
                if not good:
                    status.reason = exchange.refused[place]
                    self._note_refusal(site, status.reason, task.round + 1)
            if not good:
                self._say(f"round {task.round + 1}: the answer of site {site} is refused: {exchange.refused[place]}")

        self._wire.ask(messages, self._options.timeout, take)
        self._check_ended()

    def _lose(self, site: str, task: Task, reason: str) -> None:
        """A site that does not answer is not asked again in this segment, so that it costs one timeout."""
        with self._lock:
            self._away[site] = f"{reason}, in round {task.round + 1}"

    def _note_refusal(self, site: str, reason: str, round_number: int = 0) -> None:
        self.status.refusals.append({"site": site, "round": round_number, "reason": reason})
        del self.status.refusals[:-REFUSALS]


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
