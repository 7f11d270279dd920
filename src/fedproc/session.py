"""One experiment made ready to run: its data dealt out, its network built, its folder opened or continued."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproc import streams
from fedproc.client_store import ClientStore
from fedproc.data import SOURCES, Images, load, source_of
from fedproc.data.augment import AUGMENTATIONS
from fedproc.data.partition import Deal, Indices, class_counts, deal_test, hold_out
from fedproc.errors import Diverged, InputError
from fedproc.evaluate import HeldOut
from fedproc.experiment import Experiment
from fedproc.lanes import Answer, Bank, Job, Kind, Setting, Task
from fedproc.methods import METHODS
from fedproc.methods.fedavg import Problem
from fedproc.methods.plugin import LOADED
from fedproc.networks import EMBEDDING, Layout, NetworkSpec, Weights, build, load_encoder
from fedproc.rounds import Loop, Plan, Progress, State, first_state, play
from fedproc.runs.atomic import uninterrupted
from fedproc.runs.folder import RunFolder
from fedproc.runs.result import summarise

Record = dict[str, Any]


def resolve_device(name: str) -> torch.device:
    """The torch device of --device; auto takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda"):
        count = torch.cuda.device_count()
        number = int(name.partition(":")[2] or 0)
        if number >= count:
            raise InputError(f"--device {name}: torch sees {count} GPUs here; use --device cpu or auto")
    return torch.device(name)


@dataclass
class Library:
    """Data sets read once and put on each device once, however many experiments share them."""

    _images: dict[tuple[object, ...], Images]
    _banks: dict[tuple[int, str, torch.device], Bank]

    def __init__(self) -> None:
        self._images = {}
        self._banks = {}

    def images(self, experiment: Experiment) -> Images:
        e = experiment
        at = (e.data, e.data_dir, e.image_size, e.test_fraction, None if e.data in SOURCES else e.data_seed)
        if at not in self._images:
            self._images[at] = load(e.data, e.data_dir, e.image_size, e.test_fraction, e.data_seed)
        return self._images[at]

    def bank(self, images: Images, part: str, device: torch.device) -> Bank:
        at = (id(images), part, device)
        if at not in self._banks:
            self._banks[at] = Bank.of(images.train if part == "train" else images.test, device)
        return self._banks[at]


def deal(experiment: Experiment, images: Images) -> list[Indices]:
    """Who holds what."""
    e = experiment
    made = Deal(e.partition, e.clients, e.beta, e.data_seed, e.min_size, e.classes_per_client, e.partition_file)
    return made.shares(images.train.labels, images.train.sites)


class Session:
    """An experiment under way. `advance` is sent answers and gives the next tasks, or None at the end."""

    def __init__(self, experiment: Experiment, library: Library, label: str | None = None) -> None:
        self.experiment = experiment
        self.label = label or experiment.method
        self.device = resolve_device(experiment.device)
        self.images = library.images(experiment)
        self.setting, self.plan = _prepare(experiment, self.images, library, self.device)
        self.store = ClientStore(experiment.client_memory << 20, self.device)
        self.folder: RunFolder | None = None
        self.records: list[Record] = []
        self.result: Record | None = None
        self.diverged: Diverged | None = None
        self.notes: list[str] = []
        weights = self.setting.layout.read(self.setting.network)
        self.state = first_state(self.plan.method, Weights(*(t.to(self.device) for t in weights.tensors().values())))
        self._saved_round: int | None = None
        self._loop: Loop | None = None

    def claim(self, path: Path) -> None:
        """Take the folder for this process, with nothing in it changed yet."""
        self.folder = RunFolder(path)

    def open(self, fresh: bool) -> None:
        """Start in the folder, or continue what is there."""
        folder = self.folder
        if folder is None:
            return
        folder.prepare(fresh)
        try:
            self.store.place(folder.path / "clients")
            config = {**self.experiment.config(), "rounds": self.plan.rounds, "fingerprint": self.images.fingerprint}
            if self.experiment.partition in ("natural", "file"):
                config["clients"] = len(self.plan.client_sizes)
            for name in ("partition_file", "encoder_weights"):
                path = getattr(self.experiment, name)
                if path is not None:
                    config[f"{name}_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
            if self.experiment.method in LOADED:
                config["plugin"] = LOADED[self.experiment.method]
            folder.settle(config, self.plan.depends_on_rounds())
            self.result = folder.result()
            found = folder.resume() if self.result is None else None
            self.records = folder.metrics()
            if found is not None:
                self.notes += found[2]
                self.state = _restored(found, self.state, self.store)
                self._saved_round = self.state.round
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    @property
    def cohort(self) -> int:
        """The most clients at work together: all of them when the start asks everyone."""
        everyone = len(self.plan.client_sizes)
        method = self.plan.method
        all_at_once = method.starts_with_prototypes or method.own_models
        return everyone if all_at_once else max(1, round(self.plan.sample * everyone))

    def advance(self, answers: Sequence[Answer]) -> list[Task] | None:
        """Hand the answers to the round loop, note what it finished, and return what it asks for next."""
        if self.result is not None:
            return None
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
        state = self.state
        tensors = {f"weights/{name}": tensor for name, tensor in state.weights.tensors().items()}
        tensors |= {f"kept/{name}": state.kept[name] for name in sorted(state.kept)}
        tensors |= {f"client/{path}": tensor for path, tensor in self.store.tensors().items()}
        values = {
            "round": state.round,
            "bytes_up": state.bytes_up,
            "bytes_down": state.bytes_down,
            "clients": self.store.values(),
        }
        self.store.sweep(self.folder.save_checkpoint(state.round, tensors, values))
        self._saved_round = state.round

    def _note(self, progress: Progress) -> None:
        if progress.record is not None:
            confusion = _pop_confusion(progress.record)
            if self.folder is not None:
                self.folder.append_metrics(progress.record, confusion)
            self.records.append(progress.record)
        with uninterrupted():  # an interrupt before this saves the round before, with metrics one line ahead of it
            self.store.settle()
            self.state = progress.state
        done = self.state.round
        if progress.record is None or done % self.experiment.checkpoint_every == 0 or done == self.plan.rounds:
            self.save()

    def _finish(self) -> None:
        summary = summarise(self.records, self.plan.held_out, self.experiment.target_accuracy)
        result = {"method": self.experiment.method, "label": self.label, **summary}
        if self.folder is not None:
            for name, tensors in self._models():
                self.folder.write_model(name, tensors, self._description())
            self.store.sweep(self.folder.finish_checkpoints())
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
            self.store.sweep(self.folder.finish_checkpoints())
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
                    yield f"models/client-{client:03d}.safetensors", layout.named(Weights.of(own))
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


def _restored(found: tuple[dict[str, Tensor], Record, list[str]] | None, state: State, store: ClientStore) -> State:
    if found is None:
        return state
    tensors, values, _ = found
    device = state.weights.params.device

    def under(prefix: str) -> dict[str, Tensor]:
        return {n.removeprefix(prefix): t.to(device) for n, t in tensors.items() if n.startswith(prefix)}

    store.restore(under("client/"), values["clients"])
    return State(
        round=int(values["round"]),
        started=True,
        weights=Weights.of(under("weights/")),
        kept=under("kept/"),
        bytes_up=int(values["bytes_up"]),
        bytes_down=int(values["bytes_down"]),
    )


def _pop_confusion(record: Record) -> Record | None:
    """The confusion matrix of a record, which goes to a file of its own."""
    name = next((name for name in ("confusion", "val_confusion") if name in record), None)
    return None if name is None else {"round": record["round"], "confusion": record.pop(name)}


def _prepare(experiment: Experiment, images: Images, library: Library, device: torch.device) -> tuple[Setting, Plan]:
    e = experiment
    dtype = torch.float64 if e.dtype == "float64" else torch.float32
    kind = METHODS[e.method]
    shares = deal(e, images)
    train = images.train
    held = [
        hold_out(share, train.labels, e.val_fraction, e.data_seed, client, train.groups)
        for client, share in enumerate(shares)
    ]
    training = [own for own, _ in held]
    if kind.one_place:
        training = [np.concatenate(training)]
    spec = NetworkSpec(e.network, e.width, images.channels, images.side, images.classes, e.normalize_z, dtype, e.norm)
    network = build(spec, e.model_seed)
    if e.encoder_weights is not None:
        load_encoder(network, e.encoder_weights)
    sizes = [len(own) for own in training]
    problem = Problem(
        rounds=e.rounds,
        classes=images.classes,
        features=EMBEDDING,
        model_seed=e.model_seed,
        dtype=dtype,
        epochs=e.epochs,
        client_sizes=tuple(sizes),
        momentum=e.momentum,
        calibrate=e.calibrate,
        calibrate_prototypes=e.calibrate if e.calibrate_prototypes is None else e.calibrate_prototypes,
        server_beta=e.server_beta,
        server_lr=e.server_lr,
    )
    method = kind(e.options, problem)
    setting = Setting(
        method=method,
        spec=spec,
        network=network,
        layout=Layout.of(network),
        train=library.bank(images, "train", device),
        held_out=_held_out(e, images, [val for _, val in held], training, library, device),
        shares=[torch.from_numpy(own).to(device) for own in training],
        augmentation=AUGMENTATIONS[e.augment],
        normalisation=source_of(e.data).normalisation(images.channels),
        batch_size=e.batch_size,
        momentum=e.momentum,
        weight_decay=e.weight_decay,
        model_seed=e.model_seed,
        device=device,
    )
    plan = Plan(
        method=method,
        rounds=method.rounds,
        client_sizes=sizes,
        sample=e.sample,
        lr=e.lr,
        eval_every=e.eval_every,
        model_seed=e.model_seed,
        batch_size=e.batch_size,
        held_out="val" if e.val_fraction > 0 else "test",
        merge=e.merge or kind.merge,
        server_step=e.server_step or kind.server_step,
        lr_schedule=e.lr_schedule,
        lr_floor=e.lr_floor,
        average_weights=e.average_weights,
        send_averaged=e.send_averaged,
        classifier=setting.layout.span("classifier."),
    )
    return setting, plan


def _held_out(
    e: Experiment,
    images: Images,
    validation: Sequence[Indices],
    training: Sequence[Indices],
    library: Library,
    device: torch.device,
) -> HeldOut:
    """The clients' own validation samples, or the test set dealt out by the clients' class shares."""
    if e.val_fraction > 0:
        part, index = "train", np.concatenate(validation)
        if not len(index):
            raise InputError(f"--val-fraction {e.val_fraction}: leaves no validation sample; take a larger one")
        owner = np.repeat(np.arange(len(validation)), [len(val) for val in validation])
        if len(training) == 1:
            owner = np.zeros_like(owner)
    else:
        part, index = "test", np.arange(len(images.test))
        counts = class_counts(list(training), images.train.labels, images.classes)
        owner = deal_test(images.test.labels, counts, e.data_seed)
    bank = library.bank(images, part, device)
    where = (torch.from_numpy(index).to(device), torch.from_numpy(owner).to(device))
    return HeldOut(bank.images, bank.labels, *where, clients=len(training))
