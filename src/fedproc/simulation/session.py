"""One experiment under way: its round loop, its sites, its folder opened or continued."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

from fedproc.assembly import fresh_weights, resolve_device
from fedproc.attacks import ATTACKS, HostileClient, said
from fedproc.errors import Diverged, Failed, MethodError
from fedproc.experiment import Experiment
from fedproc.files import write_file
from fedproc.lanes import Job, Outcome
from fedproc.lanes.executor import LaneError
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.plan import Progress, cohort
from fedproc.protocol.rounds import Step, play
from fedproc.protocol.task import SERVER, Kind, Task
from fedproc.protocol.weights import Weights
from fedproc.runs.folder import RunFolder, client_model
from fedproc.runs.keeper import Keeper
from fedproc.simulation.predictions import write_predictions
from fedproc.simulation.preparation import Library, deal, prepare, site_names
from fedproc.site import WITHOUT_LANES, Site
from fedproc.whereabouts import in_words, trace

Record = dict[str, Any]
SHOWN = 10  # clients in a line


class Session(Keeper):
    """An experiment under way. `advance` gives the next exchange, or None at the end. Its device is the experiment's
    own where no other is named.
    """

    def __init__(
        self,
        experiment: Experiment,
        library: Library,
        label: str | None = None,
        device: str | None = None,
        save_after: float = float("inf"),
    ) -> None:
        label, place = label or experiment.method, resolve_device(device or experiment.device)
        self.images = library.images(experiment)
        prepared = prepare(experiment, self.images, library, place, label)
        super().__init__(experiment, label, prepared.assembly, prepared.plan, place, save_after)
        self.setting, self.clients, self.held_out = prepared.setting, prepared.clients, prepared.held_out
        self.test, self.hostile = prepared.test, prepared.hostile
        self._loop: Iterator[Step] | None = None
        if skipped := len(self.images.skipped):
            self.notes.append(f"{skipped} image files cannot be read and are left out, as split.csv says")
        e = experiment
        if e.attack is not None and e.attackers is not None:
            who = ", ".join(self.plan.clients[client] for client in sorted(self.hostile)[:SHOWN])
            more = ", ..." if len(self.hostile) > SHOWN else ""
            how = said(e.attack, e.attack_strength, e.attackers, len(self.clients))
            self.notes.append(f"{how}: {who}{more}")

    @property
    def client_sizes(self) -> list[int]:
        return [len(data) for data in self.clients]

    def site(self, client: int) -> Site:
        """A client as an object, or the server as one that evaluates."""
        if client == SERVER:
            return Site(SERVER, "server", self.setting, None, self.states, self.held_out, test=self.test)
        fresh = partial(fresh_weights, self.experiment, self.setting)
        name, data = self.plan.clients[client], self.clients[client]
        chain = (*self.plan.postprocessors, *self._hostility(client))
        return Site(client, name, self.setting, data, self.states, self.held_out, fresh, chain)

    def _hostility(self, client: int) -> tuple[HostileClient, ...]:
        """What a hostile client does to its answers."""
        e = self.experiment
        if client not in self.hostile or e.attack is None or e.attack_strength is None:
            return ()
        return (HostileClient(ATTACKS[e.attack], e.attack_strength, e.model_seed, self.plan.shared),)

    @cached_property
    def config(self) -> Record:
        config = super().config
        if self.experiment.partition in ("natural", "file"):
            config["clients"] = len(deal(self.experiment, self.images))
        return config

    def fingerprint(self) -> str:
        return self.images.fingerprint

    def client_names(self) -> list[str]:
        return site_names(self.experiment, self.images)

    def write_beside(self, folder: RunFolder) -> None:
        wanted = self.experiment.predictions
        if wanted == "none":
            return
        models: dict[int | None, Weights] = {None: self.state.weights}
        asked = {"predictions.csv": self.held_out}
        if self.plan.keep == "best" and self.state.kept is not None:
            models, wanted = {None: self.state.kept.weights}, "test"
        if wanted == "test" and self.test is not self.held_out:
            asked["test-predictions.csv"] = self.test
        models = {} if self.plan.shared is not None else models
        for client, own in self.client_models().items():
            models[client] = own
        for name, held_out in asked.items():
            fill = partial(
                write_predictions, setting=self.setting, images=self.images, held_out=held_out, models=models
            )
            write_file(folder.path / name, fill)

    def listing(self) -> list[tuple[str, str, str, str, str]]:
        return self.images.listing()

    def held_counts(self) -> list[list[int]]:
        return [data.class_counts.round().long().tolist() for data in self.clients]

    @property
    def cohort(self) -> int:
        """The most clients that train together."""
        sizes = self.client_sizes
        try:
            return max(1, len(self.plan.method.knowing(sizes).participants(0, cohort(self.plan, sizes, 0))))
        except MethodError:  # which ends the run when its turn comes
            return len(sizes)

    def advance(self) -> Exchange | None:
        """Let the round loop go on: note what it finished, and return what it asks for next. What sites answer by
        themselves, they are asked here.
        """
        if self.result is not None:
            return None
        try:
            if self._loop is None:
                self._loop = iter(play(self.plan, self.state))
            for step in self._loop:
                if isinstance(step, Progress):
                    self.note(step)
                elif step.kind in WITHOUT_LANES:
                    for place, task in enumerate(step.tasks):
                        step.take(place, self.site(task.client).describe(task))
                else:
                    return step
            self.finish()
        except Diverged as divergence:
            self.end(divergence, "diverged")
        except Exception as error:
            self.fail_or_raise(error)
        return None

    def fail_or_raise(self, error: Exception) -> None:
        """What a person's own code did ends this run; everything else is ours."""
        if not (isinstance(error, MethodError) or self.from_own(error)):
            raise error
        self.fail(error)

    def from_own(self, error: BaseException) -> bool:
        """Whether code of a plugin, or of the module that the method's class is from, was being run then."""
        return from_module(error, tuple(method.__module__ for method in self.experiment.own.methods))

    def fail(self, error: Exception) -> None:
        """A person's own code failed: this run is over, and says where it was."""
        cause = error.error if isinstance(error, LaneError) else error
        plain = isinstance(cause, (MethodError, LaneError))
        reason = str(cause) if plain else f"method {self.experiment.method}: {in_words(cause)}"
        self.end(Failed(self.state.round + 1, reason, trace(cause)), "failed")

    def jobs(self, exchange: Exchange) -> list[Job]:
        """What lanes have to do for an exchange."""
        return [self.site(task.client).job(task) for task in exchange.tasks]

    def take(self, exchange: Exchange, place: int, outcome: Outcome) -> None:
        """Hand a client's outcome to the round loop, and keep its state if it was accepted."""
        task = exchange.tasks[place]
        site = self.site(task.client)
        reply = site.reply(task, outcome)
        if not reply.seconds:  # which did not leave the client, but were spent here
            exchange.spent(outcome[0].seconds)
        self._save_client(task, outcome)
        if exchange.take(place, reply):
            site.accepted(task, outcome)

    def _save_client(self, task: Task, outcome: Outcome) -> None:
        """Save what a client of the last round trained, where that was asked for, before it is merged."""
        if task.kind is not Kind.TRAIN or not self.experiment.keep_clients or self.folder is None:
            return
        payload = outcome[0].payload
        own = self.plan.shared is not None or self.plan.method.has_own  # which are kept anyhow
        if task.round == self.plan.rounds - 1 and payload is not None and not own:
            named = self.setting.layout.named(Weights.of(payload.tensors))
            self.folder.write_model(client_model(task.client), named, self.assembly.description())


def from_module(error: BaseException, names: tuple[str, ...]) -> bool:
    """Whether code of a plugin, or of a module of this name, was being run when this was raised."""
    trace = error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if name.startswith("fedproc_plugin_") or name in names:
            return True
        trace = trace.tb_next
    return error.__cause__ is not None and from_module(error.__cause__, names)
