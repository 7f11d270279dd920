"""A run under way on record: its folder opened or continued, its records, the state after its last whole round. The
simulator and the server of a federation keep their runs with this.
"""

from __future__ import annotations

import hashlib
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedproc.assembly import Assembly
from fedproc.errors import Diverged, Failed, RunError, with_flags
from fedproc.experiment import Experiment
from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.plugin import plugin_hash
from fedproc.networks import encoder_file
from fedproc.protocol.diagnostics import Diagnostics
from fedproc.protocol.plan import Plan, Progress, State, first_state
from fedproc.protocol.weights import Weights
from fedproc.runs.checkpoint import Checkpoint
from fedproc.runs.client_states import ClientStates, Holdings
from fedproc.runs.folder import RunFolder, client_model
from fedproc.runs.result import refusals, summarise
from fedproc.runs.state import restored_state, saved_state

Record = dict[str, Any]
Fresh = bool | Literal["unfinished"]  # start over: not, always, or what is not finished with this very config


class Keeper:
    """A run on record. Without a folder everything stays in memory. It is saved every so many rounds, and when the last
    save is `save_after` seconds ago.
    """

    def __init__(
        self,
        experiment: Experiment,
        label: str,
        assembly: Assembly,
        plan: Plan,
        device: torch.device,
        save_after: float = float("inf"),
    ) -> None:
        self.experiment, self.label, self.device = experiment, label, device
        self.assembly, self.plan = assembly, plan
        self.states = ClientStates(experiment.client_memory << 20, device)
        self.folder: RunFolder | None = None
        self.records: list[Record] = []
        self.result: Record | None = None
        self.ended: Diverged | Failed | None = None  # what ended it early
        self.notes: list[str] = []
        self.models: dict[str, dict[str, Tensor]] = {}  # what was trained, by file name, where there is no folder
        start = first_state(plan, assembly.first_weights(device))
        self._now: tuple[State, Holdings] = (start, self.states.holdings)
        self._saved_round: int | None = None
        self._save_after = save_after
        self._saved_at = time.monotonic()

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

    @abstractmethod
    def fingerprint(self) -> str:
        """Of the data."""

    @abstractmethod
    def held_counts(self) -> Sequence[Sequence[int]]:
        """How many samples of each class each client trains on."""

    def client_names(self) -> Sequence[str]:
        """What the clients are called, where they have names of their own."""
        return ()

    def listing(self) -> Sequence[Sequence[str]]:
        """(path, class, site, group, split) of each image file, where the images are files with names."""
        return ()

    @cached_property
    def config(self) -> Record:
        """What config.json holds."""
        e = self.experiment
        config = {**e.config(), "rounds": self.plan.rounds - self.plan.own_rounds, "fingerprint": self.fingerprint()}
        for name in ("partition_file", "encoder_weights", "start_from"):
            path = getattr(e, name)
            if path is not None:
                config[f"{name}_sha256"] = file_hash(path)
        if (digest := e.own.hash_of(e.method) or plugin_hash(e.method, e.plugin)) is not None:
            config["plugin_sha256"] = digest
        source = encoder_file(e.network) if self.assembly.spec.foreign and e.own.encoder is None else None
        if e.own.encoder is not None:
            config["network_sha256"] = e.own.encoder.sha256
        elif source is not None:
            config["network_sha256"] = hashlib.sha256(source.read_bytes()).hexdigest()
        return config

    def claim(self, path: Path, fresh: Fresh = False) -> bool:
        """Take the folder for this process, and refuse what cannot be continued, with nothing in it changed yet.
        Returns whether the run is to start over.
        """
        self.folder = RunFolder(path)
        if fresh == "unfinished":
            fresh = not self.folder.finished(self.config)
        if not fresh:
            self.folder.check(self.config, self.plan.depends_on_rounds())
        return bool(fresh)

    def open(self, fresh: bool) -> None:
        """Start in the folder, or continue what is there."""
        folder = self.folder
        if folder is None:
            return
        folder.prepare(fresh)
        try:
            self.states.place(folder.path / "clients")
            folder.settle(self.config)
            folder.write_partition(self.assembly.subject.class_names, self.held_counts(), self.client_names())
            folder.write_split(self.listing())
            self.result = folder.result()
            if self.result is not None and self.result["status"] == "failed":
                folder.forget_result()  # what failed is tried again
                self.result = None
            found = folder.resume(self.plan.rounds, self._once) if self.result is None else None
            self.records = folder.metrics()
            if found is not None:
                self.notes += found.complaints
                self._adopt(found)
            if self.result is not None and self.result["status"] == "finished":
                self._complete_models(folder)
        except BaseException:
            self.close()
            raise

    def _adopt(self, found: Checkpoint) -> None:
        self._now = restored_state(found, self.state)
        self.states.adopt(self._now[1])
        self._saved_round = self.state.round

    def _complete_models(self, folder: RunFolder) -> None:
        """Make the model files of a finished run again that are no longer there, from its last checkpoint."""
        alone = self.plan.shared is not None and self.plan.shared.nothing
        names = ["models"] if alone else ["model.safetensors"]
        names += ["averaged.safetensors"] if self.experiment.average_weights else []
        if all((folder.path / name).exists() for name in names):
            return
        try:
            last = int((self.result or {}).get("rounds", self.plan.rounds))
            found = folder.newest_checkpoint(last)
            if found is None or found.values.round != last:
                raise RunError(f"{folder.path}: there is no checkpoint of its last round")
            self._adopt(found)
        except RunError as error:
            self.notes.append(f"the trained model is missing and cannot be made again: {with_flags(error)}")
            return
        for name, tensors in self._models():
            if not (folder.path / name).exists():
                folder.write_model(name, tensors, self.assembly.description())
                self.notes.append(f"{name} was missing and is made again")

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    @property
    def _once(self) -> bool:
        """Whether no round may be done again that was told of: its noise cannot be drawn again."""
        return self.plan.privacy is not None and self.plan.privacy.secure

    def save(self, later: Mapping[str, Record] | None = None) -> None:
        """Write the checkpoint of the last whole round, if it is not there yet; `later`: its lines, if they are not
        written yet.
        """
        if self.folder is None or self.result is not None or self._saved_round == self.state.round:
            return
        if not self.state.started:
            return
        state, holdings = self._now
        tensors, values = saved_state(state, holdings)
        self.states.sweep(holdings, self.folder.save_checkpoint(state.round, tensors, values, later or {}))
        self._saved_round = state.round
        self._saved_at = time.monotonic()

    def note(self, progress: Progress) -> None:
        record = progress.record
        said = {**_beside(record), "metrics.jsonl": record} if record is not None else {}
        if not self._once:
            self._tell(said)
        # One assignment for what belongs together: an interrupt finds the round before, with metrics one line ahead
        # of it, or this one. (Signals cannot be held back instead: they reach the main thread through the lanes'.)
        self._now = (progress.state, self.states.settled())
        self.states.adopt(self._now[1])
        done = self.state.round
        due = (
            done % self.experiment.checkpoint_every == 0
            or time.monotonic() - self._saved_at >= self._save_after
            or done == self.plan.rounds
        )
        if self._once:  # every round, and before anything is told of it: a kill in between leaves nothing to do again
            self.save(said)
            self._tell(said)
        elif record is None or due:
            self.save()

    def _tell(self, said: Mapping[str, Record]) -> None:
        """Put a round on record."""
        if not said:
            return
        if self.folder is not None:
            self.folder.append_lines(said)
        self.records.append(said["metrics.jsonl"])

    def finish(self) -> None:
        self.save()
        target, own_rounds = self.experiment.target_accuracy, self.plan.own_rounds
        summary = summarise(self.records, self.plan.held_out, target, own_rounds)
        private = self.plan.privacy.summary(self.state.round) if self.plan.privacy is not None else {}
        result = {"method": self.experiment.method, "label": self.label, **summary, **private}
        if self.folder is not None:
            for name, tensors in self._models():
                self.folder.write_model(name, tensors, self.assembly.description())
            self.write_beside(self.folder)
            self.states.sweep(self._now[1], self.folder.finish_checkpoints())
            self.folder.write_result(result)
        else:
            self.models = {name: _copied(tensors) for name, tensors in self._models()}
        self.result = result

    def write_beside(self, folder: RunFolder) -> None:
        """Write what else belongs to a finished run, before its result says that it is one."""

    def end(self, error: Diverged | Failed, status: str) -> None:
        """The run ends before its last round."""
        self.ended = error
        self.save()
        result = {**failed_result(self.experiment.method, self.label, error.round, error.reason), "status": status}
        result |= refusals(self.records)
        if self.folder is not None:
            self.states.sweep(self._now[1], self.folder.finish_checkpoints())
            self.folder.write_result(result)
        self.result = result

    def client_models(self) -> dict[int, Weights]:
        """The models that clients have of their own, here where their states are."""
        shared, method, found = self.plan.shared, CheckedClient(self.assembly.method), {}
        if shared is None and not self.plan.method.has_own:
            return {}
        for client in range(len(self.plan.clients)):
            own = self.states.latest(client)
            if own is not None:
                found[client] = Weights.of(own) if shared is not None else method.own_model(own, self.state.weights)
        return found

    def _models(self) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """The averaged network and its prototypes by file name; or each client's, where they have models of their
        own.
        """
        layout, state, method = self.assembly.layout, self.state, self.plan.method
        shown = method.prototypes(state.method) or Diagnostics.shown(
            state.diagnostics, method.classes, method.features, state.weights.params
        )
        weights = state.weights
        if self.plan.keep == "best" and state.kept is not None:
            weights, shown = state.kept.weights, (state.kept.prototypes, state.kept.known)
        prototypes = dict(zip(("prototypes", "known"), shown, strict=True))
        for client, own in self.client_models().items():
            yield client_model(client), layout.named(own)
        if self.plan.shared is not None and self.plan.shared.nothing:
            return
        yield "model.safetensors", {**layout.named(weights), **prototypes}
        if state.averaged is not None:
            yield "averaged.safetensors", {**layout.named(state.averaged), **prototypes}


def file_hash(path: Path) -> str:
    """By which a file is known, wherever it lies."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def _beside(record: Record) -> dict[str, Record]:
    """The confusion matrix and the sites' counts of a record, which go to files of their own."""
    found = {}
    for name, kind in (("confusion", "confusion"), ("val_confusion", "confusion"), ("sites", "sites")):
        if name in record:
            found[f"{kind}.jsonl"] = {"round": record["round"], kind: record.pop(name)}
    return found


def failed_result(method: str, label: str, round_number: int, reason: str) -> Record:
    """What result.json holds of a run that a person's own code ended."""
    return {"method": method, "label": label, "status": "failed", "round": round_number, "reason": reason}
