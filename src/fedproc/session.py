"""One experiment under way: its round loop, what its clients keep, its folder opened or continued."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from fedproc import streams
from fedproc.client_store import ClientStore, Holdings
from fedproc.data.partition import class_counts
from fedproc.errors import Diverged
from fedproc.experiment import Experiment
from fedproc.lanes import Answer, Job, Kind, Task
from fedproc.methods.plugin import LOADED
from fedproc.networks import Weights, build, load_encoder
from fedproc.preparation import Library, client_names, deal, prepare, resolve_device
from fedproc.rounds import Loop, Progress, State, first_state, play
from fedproc.runs.folder import RunFolder, client_model
from fedproc.runs.result import summarise

Record = dict[str, Any]


class Session:
    """An experiment under way. `advance` is sent answers and gives the next tasks, or None at the end."""

    def __init__(self, experiment: Experiment, library: Library, label: str | None = None) -> None:
        self.experiment = experiment
        self.label = label or experiment.method
        self.device = resolve_device(experiment.device)
        self.images = library.images(experiment)
        self.setting, self.plan = prepare(experiment, self.images, library, self.device)
        self.store = ClientStore(experiment.client_memory << 20, self.device)
        self.folder: RunFolder | None = None
        self.records: list[Record] = []
        self.result: Record | None = None
        self.diverged: Diverged | None = None
        self.notes: list[str] = []
        weights = self.setting.layout.read(self.setting.network)
        start = Weights(*(tensor.to(self.device) for tensor in weights.tensors().values()))
        self._now = (first_state(self.plan.method, start), self.store.holdings)
        self._saved_round: int | None = None
        self._loop: Loop | None = None

    @property
    def state(self) -> State:
        """The round loop's state after the last whole round."""
        return self._now[0]

    def claim(self, path: Path, fresh: bool = False) -> None:
        """Take the folder for this process, and refuse what cannot be continued, with nothing in it changed yet."""
        self.folder = RunFolder(path)
        if not fresh:
            self.folder.check(self._config, self.plan.depends_on_rounds())

    @cached_property
    def _config(self) -> Record:
        config = {**self.experiment.config(), "rounds": self.plan.rounds, "fingerprint": self.images.fingerprint}
        if self.experiment.partition in ("natural", "file"):
            config["clients"] = len(deal(self.experiment, self.images))
        for name in ("partition_file", "encoder_weights"):
            path = getattr(self.experiment, name)
            if path is not None:
                config[f"{name}_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        if self.experiment.method in LOADED:
            config["plugin"] = LOADED[self.experiment.method]
        return config

    def open(self, fresh: bool) -> None:
        """Start in the folder, or continue what is there."""
        folder = self.folder
        if folder is None:
            return
        folder.prepare(fresh)
        try:
            self.store.place(folder.path / "clients")
            folder.settle(self._config)
            if not folder.has_partition():
                called = client_names(self.experiment, self.images)
                folder.write_partition(self.images.class_names, self._holdings(), called)
            self.result = folder.result()
            found = folder.resume() if self.result is None else None
            self.records = folder.metrics()
            if found is not None:
                self.notes += found[2]
                self._now = _restored(found, self.state)
                self.store.adopt(self._now[1])
                self._saved_round = self.state.round
        except BaseException:
            self.close()
            raise

    def _holdings(self) -> list[list[int]]:
        """How many samples of each class each client trains on."""
        shares = [share.cpu().numpy() for share in self.setting.shares]
        held: list[list[int]] = class_counts(shares, self.images.train.labels, self.images.classes).tolist()
        return held

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    @property
    def cohort(self) -> int:
        """The most clients that train together."""
        everyone = len(self.plan.client_sizes)
        return everyone if self.plan.method.own_models else max(1, round(self.plan.sample * everyone))

    def advance(self, answers: Sequence[Answer]) -> list[Task] | None:
        """Hand the answers to the round loop, note what it finished, and return what it asks for next."""
        if self.result is not None:
            return None
        self._keep_clients(answers)
        try:
            if self._loop is None:
                self._loop = play(self.plan, self.state)
                step = next(self._loop)
            else:
                step = self._loop.send(answers)
            while isinstance(step, Progress):
                self._note(step)
                step = self._loop.send(())
            return step
        except StopIteration:
            self._finish()
        except Diverged as divergence:
            self._give_up(divergence)
        return None

    def _keep_clients(self, answers: Sequence[Answer]) -> None:
        """Save what the clients of the last round trained, where that was asked for, before it is merged."""
        if not self.experiment.keep_clients or self.folder is None or self.plan.method.own_models:
            return
        for answer in answers:
            task, payload = answer.task, answer.payload
            if task.kind is Kind.TRAIN and task.round == self.plan.rounds - 1 and payload is not None:
                named = self.setting.layout.named(Weights.of(payload.tensors))
                self.folder.write_model(client_model(task.client), named, self._description())

    def job(self, task: Task) -> Job:
        if task.kind is not Kind.TRAIN:
            return Job(task, self.setting)
        kept: Mapping[str, Tensor] | None = self.store.get(task.client)
        if kept is None:
            start = Weights.of(task.payload.tensors)
            kept = self.plan.method.keep_first(task.client, start, self._fresh_weights)
        return Job(task, self.setting, kept)

    def _fresh_weights(self, number: int) -> Weights:
        """Initial weights of their own for the n-th client that wants some."""
        seed = streams.fold(self.experiment.model_seed, number) % 2**32
        network = build(self.setting.spec, seed)
        if self.experiment.encoder_weights is not None:
            load_encoder(network, self.experiment.encoder_weights)
        weights = self.setting.layout.read(network)
        return Weights(*(tensor.to(self.device) for tensor in weights.tensors().values()))

    def save(self) -> None:
        """Write the checkpoint of the last whole round, if it is not there yet."""
        if self.folder is None or self.result is not None or self._saved_round == self.state.round:
            return
        if not self.state.started:
            return
        state, holdings = self._now
        tensors = {f"weights/{name}": tensor for name, tensor in state.weights.tensors().items()}
        tensors |= {f"kept/{name}": state.kept[name] for name in sorted(state.kept)}
        tensors |= {f"client/{path}": tensor for path, tensor in holdings.tensors().items()}
        values = {
            "round": state.round,
            "bytes_up": state.bytes_up,
            "bytes_down": state.bytes_down,
            "clients": holdings.values(),
        }
        self.store.sweep(holdings, self.folder.save_checkpoint(state.round, tensors, values))
        self._saved_round = state.round

    def _note(self, progress: Progress) -> None:
        if progress.record is not None:
            confusion = _pop_confusion(progress.record)
            if self.folder is not None:
                self.folder.append_metrics(progress.record, confusion)
            self.records.append(progress.record)
        # One assignment for what belongs together: an interrupt finds the round before, with metrics one line ahead
        # of it, or this one. (Signals cannot be held back instead: they reach the main thread through the lanes'.)
        self._now = (progress.state, self.store.settled())
        self.store.adopt(self._now[1])
        done = self.state.round
        if progress.record is None or done % self.experiment.checkpoint_every == 0 or done == self.plan.rounds:
            self.save()

    def _finish(self) -> None:
        summary = summarise(self.records, self.plan.held_out, self.experiment.target_accuracy)
        result = {"method": self.experiment.method, "label": self.label, **summary}
        if self.folder is not None:
            for name, tensors in self._models():
                self.folder.write_model(name, tensors, self._description())
            self.store.sweep(self._now[1], self.folder.finish_checkpoints())
            self.folder.write_result(result)
        self.result = result

    def _give_up(self, divergence: Diverged) -> None:
        self.diverged = divergence
        self.save()
        result = {
            "method": self.experiment.method,
            "label": self.label,
            "status": "diverged",
            "round": divergence.round,
            "reason": divergence.reason,
        }
        if self.folder is not None:
            self.store.sweep(self._now[1], self.folder.finish_checkpoints())
            self.folder.write_result(result)
        self.result = result

    def _models(self) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """The averaged network and its prototypes by file name; or each client's, where nobody merges them."""
        layout, kept = self.setting.layout, self.state.kept
        prototypes = {name: kept[name] for name in ("prototypes", "known")}
        if self.plan.method.own_models:
            for client in range(len(self.plan.client_sizes)):
                own = self.store.get(client)
                if own is not None:
                    yield client_model(client), layout.named(Weights.of(own))
            return
        yield "model.safetensors", {**layout.named(self.state.weights), **prototypes}
        if "averaged_params" in kept:
            averaged = Weights(kept["averaged_params"], kept["averaged_buffers"], self.state.weights.counters)
            yield "averaged.safetensors", {**layout.named(averaged), **prototypes}

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


def _restored(found: tuple[dict[str, Tensor], Record, list[str]], state: State) -> tuple[State, Holdings]:
    tensors, values, _ = found
    device = state.weights.params.device

    def under(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t.to(device) for n, t in tensors.items() if n.startswith(prefix)}

    back = State(
        round=int(values["round"]),
        started=True,
        weights=Weights.of(under("weights/")),
        kept=under("kept/"),
        bytes_up=int(values["bytes_up"]),
        bytes_down=int(values["bytes_down"]),
    )
    return back, Holdings.restored(under("client/"), values["clients"])


def _pop_confusion(record: Record) -> Record | None:
    """The confusion matrix of a record, which goes to a file of its own."""
    name = next((name for name in ("confusion", "val_confusion") if name in record), None)
    return None if name is None else {"round": record["round"], "confusion": record.pop(name)}
