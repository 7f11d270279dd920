"""One experiment under way: its round loop, its sites, its folder opened or continued."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedproc.errors import Diverged, Failed, MethodError
from fedproc.experiment import Experiment
from fedproc.lanes import Job, Outcome
from fedproc.lanes.executor import LaneError
from fedproc.methods.plugin import plugin_hash
from fedproc.networks import encoder_file
from fedproc.protocol.diagnostics import Diagnostics
from fedproc.protocol.exchange import Exchange
from fedproc.protocol.plan import Progress, State, cohort, first_state
from fedproc.protocol.rounds import Step, play
from fedproc.protocol.task import SERVER, Kind, Task
from fedproc.protocol.weights import Weights
from fedproc.runs.client_states import ClientStates, Holdings
from fedproc.runs.folder import RunFolder, client_model
from fedproc.runs.result import summarise
from fedproc.runs.state import restored_state, saved_state
from fedproc.simulation.preparation import Library, deal, fresh_weights, prepare, resolve_device, site_names
from fedproc.site import Site

Record = dict[str, Any]


class Session:
    """An experiment under way. `advance` gives the next exchange, or None at the end. Its device is the experiment's
    own where no other is named; it is saved every so many rounds, and when the last save is `save_after` seconds ago.
    """

    def __init__(
        self,
        experiment: Experiment,
        library: Library,
        label: str | None = None,
        device: str | None = None,
        save_after: float = float("inf"),
    ) -> None:
        self.experiment = experiment
        self.label = label or experiment.method
        self.device = resolve_device(device or experiment.device)
        self.images = library.images(experiment)
        prepared = prepare(experiment, self.images, library, self.device, self.label)
        self.setting, self.plan = prepared.setting, prepared.plan
        self.clients, self.held_out = prepared.clients, prepared.held_out
        self.states = ClientStates(experiment.client_memory << 20, self.device)
        self.folder: RunFolder | None = None
        self.records: list[Record] = []
        self.result: Record | None = None
        self.ended: Diverged | Failed | None = None  # what ended it early
        self.notes: list[str] = []
        weights = self.setting.layout.read(self.setting.network)
        start = Weights(*(tensor.to(self.device) for tensor in weights.tensors().values()))
        self._now: tuple[State, Holdings] = (first_state(self.plan, start), self.states.holdings)
        self._saved_round: int | None = None
        self._save_after = save_after
        self._saved_at = time.monotonic()
        self._loop: Iterator[Step] | None = None

    @property
    def state(self) -> State:
        """The round loop's state after the last whole round."""
        return self._now[0]

    @property
    def rounds(self) -> int:
        """How many there are to be."""
        return self.plan.rounds

    @property
    def round(self) -> int:
        """The last whole one."""
        return self.state.round

    @property
    def evaluated_on(self) -> str:
        """val or test."""
        return self.plan.held_out

    @property
    def path(self) -> Path | None:
        """Its folder, while it is open."""
        return self.folder.path if self.folder is not None else None

    @property
    def client_sizes(self) -> list[int]:
        return [len(data) for data in self.clients]

    def site(self, client: int) -> Site:
        """A client as an object, or the server as one that evaluates."""
        if client == SERVER:
            return Site(SERVER, "server", self.setting, None, self.states, self.held_out)
        fresh = partial(fresh_weights, self.experiment, self.setting)
        name, data = self.plan.clients[client], self.clients[client]
        return Site(client, name, self.setting, data, self.states, self.held_out, fresh, self.plan.postprocessors)

    def claim(self, path: Path, fresh: bool = False) -> None:
        """Take the folder for this process, and refuse what cannot be continued, with nothing in it changed yet."""
        self.folder = RunFolder(path)
        if not fresh:
            self.folder.check(self._config, self.plan.depends_on_rounds())

    @cached_property
    def _config(self) -> Record:
        e = self.experiment
        config = {**e.config(), "rounds": self.plan.rounds, "fingerprint": self.images.fingerprint}
        if e.partition in ("natural", "file"):
            config["clients"] = len(deal(e, self.images))
        for name in ("partition_file", "encoder_weights"):
            path = getattr(e, name)
            if path is not None:
                config[f"{name}_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        if (digest := plugin_hash(e.method, e.plugin)) is not None:
            config["plugin_sha256"] = digest
        source = encoder_file(e.network) if self.setting.spec.foreign else None
        if source is not None:
            config["network_sha256"] = hashlib.sha256(source.read_bytes()).hexdigest()
        return config

    def open(self, fresh: bool) -> None:
        """Start in the folder, or continue what is there."""
        folder = self.folder
        if folder is None:
            return
        folder.prepare(fresh)
        try:
            self.states.place(folder.path / "clients")
            folder.settle(self._config)
            names = site_names(self.experiment, self.images)
            folder.write_partition(self.images.class_names, self._held_counts(), names)
            self.result = folder.result()
            if self.result is not None and self.result["status"] == "failed":
                folder.forget_result()  # what failed is tried again
                self.result = None
            found = folder.resume(self.plan.rounds) if self.result is None else None
            self.records = folder.metrics()
            if found is not None:
                self.notes += found.complaints
                self._now = restored_state(found, self.state)
                self.states.adopt(self._now[1])
                self._saved_round = self.state.round
        except BaseException:
            self.close()
            raise

    def _held_counts(self) -> list[list[int]]:
        """How many samples of each class each client trains on."""
        return [data.class_counts.round().long().tolist() for data in self.clients]

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
            self.folder = None

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
                    self._note(step)
                elif step.kind is Kind.DESCRIBE:
                    for place, task in enumerate(step.tasks):
                        step.take(place, self.site(task.client).describe())
                else:
                    return step
            self._finish()
        except Diverged as divergence:
            self._end(divergence, "diverged")
        except Exception as error:
            self.fail_or_raise(error)
        return None

    def fail_or_raise(self, error: Exception) -> None:
        """What a person's own code did ends this run; everything else is ours."""
        if not (isinstance(error, MethodError) or from_plugin(error)):
            raise error
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """A person's own code failed: this run is over, and says where it was."""
        cause = error.error if isinstance(error, LaneError) else error
        plain = isinstance(cause, (MethodError, LaneError))
        reason = str(cause) if plain else f"method {self.experiment.method}: {type(cause).__name__}: {cause}"
        self._end(Failed(self.state.round + 1, reason), "failed")

    def jobs(self, exchange: Exchange) -> list[Job]:
        """What lanes have to do for an exchange."""
        return [self.site(task.client).job(task) for task in exchange.tasks]

    def take(self, exchange: Exchange, place: int, outcome: Outcome) -> None:
        """Hand a client's outcome to the round loop, and keep its state if it was accepted."""
        task = exchange.tasks[place]
        site = self.site(task.client)
        reply = site.reply(task, outcome)
        self._save_client(task, outcome)
        if exchange.take(place, reply):
            site.accepted(task, outcome)

    def _save_client(self, task: Task, outcome: Outcome) -> None:
        """Save what a client of the last round trained, where that was asked for, before it is merged."""
        if task.kind is not Kind.TRAIN or not self.experiment.keep_clients or self.folder is None:
            return
        payload = outcome[0].payload
        if task.round == self.plan.rounds - 1 and payload is not None and self.plan.shared is None:
            named = self.setting.layout.named(Weights.of(payload.tensors))
            self.folder.write_model(client_model(task.client), named, self._description())

    def save(self) -> None:
        """Write the checkpoint of the last whole round, if it is not there yet."""
        if self.folder is None or self.result is not None or self._saved_round == self.state.round:
            return
        if not self.state.started:
            return
        state, holdings = self._now
        tensors, values = saved_state(state, holdings)
        self.states.sweep(holdings, self.folder.save_checkpoint(state.round, tensors, values))
        self._saved_round = state.round
        self._saved_at = time.monotonic()

    def _note(self, progress: Progress) -> None:
        if progress.record is not None:
            confusion = _pop_confusion(progress.record)
            if self.folder is not None:
                self.folder.append_metrics(progress.record, confusion)
            self.records.append(progress.record)
        # One assignment for what belongs together: an interrupt finds the round before, with metrics one line ahead
        # of it, or this one. (Signals cannot be held back instead: they reach the main thread through the lanes'.)
        self._now = (progress.state, self.states.settled())
        self.states.adopt(self._now[1])
        done = self.state.round
        due = done % self.experiment.checkpoint_every == 0 or time.monotonic() - self._saved_at >= self._save_after
        if progress.record is None or due or done == self.plan.rounds:
            self.save()

    def _finish(self) -> None:
        summary = summarise(self.records, self.plan.held_out, self.experiment.target_accuracy)
        result = {"method": self.experiment.method, "label": self.label, **summary}
        if self.folder is not None:
            for name, tensors in self._models():
                self.folder.write_model(name, tensors, self._description())
            self.states.sweep(self._now[1], self.folder.finish_checkpoints())
            self.folder.write_result(result)
        self.result = result

    def _end(self, error: Diverged | Failed, status: str) -> None:
        """The run ends before its last round."""
        self.ended = error
        self.save()
        result = {**failed_result(self.experiment.method, self.label, error.round, error.reason), "status": status}
        if self.folder is not None:
            self.states.sweep(self._now[1], self.folder.finish_checkpoints())
            self.folder.write_result(result)
        self.result = result

    def _models(self) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """The averaged network and its prototypes by file name; or each client's, where they have models of their
        own.
        """
        layout, state, method = self.setting.layout, self.state, self.plan.method
        shown = method.prototypes(state.method) or Diagnostics.shown(
            state.diagnostics, method.classes, method.features, state.weights.params
        )
        prototypes = dict(zip(("prototypes", "known"), shown, strict=True))
        if self.plan.shared is not None:
            for client in range(len(self.plan.clients)):
                own = self.states.latest(client)
                if own is not None:
                    yield client_model(client), layout.named(Weights.of(own))
            if self.plan.shared.nothing:
                return
        yield "model.safetensors", {**layout.named(state.weights), **prototypes}
        if state.averaged is not None:
            yield "averaged.safetensors", {**layout.named(state.averaged), **prototypes}

    def _description(self) -> Record:
        spec, normalisation = self.setting.spec, self.setting.normalisation
        return {
            "schema": 1,
            "class_names": list(self.images.class_names),
            "mean": list(normalisation.mean),
            "std": list(normalisation.std),
            "network": spec.name,
            "width": spec.width,
            "norm": spec.norm,
            "channels": spec.channels,
            "image_size": spec.side,
            "normalize_z": spec.normalize_z,
            "dtype": str(spec.dtype).removeprefix("torch."),
        }


def _pop_confusion(record: Record) -> Record | None:
    """The confusion matrix of a record, which goes to a file of its own."""
    name = next((name for name in ("confusion", "val_confusion") if name in record), None)
    return None if name is None else {"round": record["round"], "confusion": record.pop(name)}


def failed_result(method: str, label: str, round_number: int, reason: str) -> Record:
    """What result.json holds of a run that a person's own code ended."""
    return {"method": method, "label": label, "status": "failed", "round": round_number, "reason": reason}


def from_plugin(error: BaseException) -> bool:
    """Whether code of a plugin was being run when this was raised."""
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith("fedproc_plugin_"):
            return True
        trace = trace.tb_next
    return error.__cause__ is not None and from_plugin(error.__cause__)
