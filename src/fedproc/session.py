"""One experiment made ready to run: its data dealt out, its network built, its folder opened or continued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproc.client_store import ClientStore
from fedproc.data import Images, load, source_of
from fedproc.data.augment import AUGMENTATIONS
from fedproc.data.partition import Indices, hold_out, partition
from fedproc.errors import Diverged, InputError
from fedproc.experiment import Experiment
from fedproc.lanes import Answer, Bank, Job, Setting, Task
from fedproc.methods import METHODS
from fedproc.methods.fedavg import Problem
from fedproc.networks import EMBEDDING, Layout, NetworkSpec, Weights, build
from fedproc.rounds import Loop, Plan, Progress, State, first_state, play
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
        named = e.data == "fashion-mini" or e.data.startswith("cifar")
        at = (e.data, e.data_dir, e.image_size, e.test_fraction, None if named else e.data_seed)
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
    return partition(e.partition, images.train.labels, e.clients, e.beta, e.data_seed, e.min_size)


class Session:
    """An experiment under way. `advance` is sent answers and gives the next tasks, or None at the end."""

    def __init__(self, experiment: Experiment, library: Library, label: str | None = None) -> None:
        self.experiment = experiment
        self.label = label or experiment.method
        self.device = resolve_device(experiment.device)
        self.images = library.images(experiment)
        self.setting, self.plan = _prepare(experiment, self.images, library, self.device)
        self.store = ClientStore()
        self.folder: RunFolder | None = None
        self.records: list[Record] = []
        self.result: Record | None = None
        self.diverged: Diverged | None = None
        self.notes: list[str] = []
        weights = self.setting.layout.read(self.setting.network)
        self.state = first_state(self.plan.method, Weights(*(t.to(self.device) for t in weights.tensors().values())))
        self._saved_round: int | None = None
        self._loop: Loop | None = None

    def open(self, path: Path, fresh: bool) -> None:
        """Take the folder: start in it, or continue what is there."""
        folder = RunFolder(path, fresh)
        try:
            folder.settle({**self.experiment.config(), "fingerprint": self.images.fingerprint}, self.plan.method)
            self.result = folder.result()
            found = folder.resume() if self.result is None else None
            self.records = folder.metrics()
            if found is not None:
                self.notes += found[2]
                self.state = _restored(found, self.state, self.store)
                self._saved_round = self.state.round
        except BaseException:
            folder.close()
            raise
        self.folder = folder

    def close(self) -> None:
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    @property
    def cohort(self) -> int:
        """The most clients at work together: all of them when the start asks everyone."""
        everyone = len(self.plan.client_sizes)
        return everyone if self.plan.method.starts_with_prototypes else max(1, round(self.plan.sample * everyone))

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
        kept = self.store.get(task.client)
        return Job(task, self.setting, self.plan.method.keep_first(self.state.weights.params) if kept is None else kept)

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
        values = {"round": state.round, "bytes_up": state.bytes_up, "bytes_down": state.bytes_down}
        self.folder.save_checkpoint(state.round, tensors, values)
        self._saved_round = state.round

    def _note(self, progress: Progress) -> None:
        if progress.record is not None:
            if self.folder is not None:
                self.folder.append_metrics(progress.record)
            self.records.append(progress.record)
        self.state = progress.state  # last: an interrupt before this line saves the round before, metrics ahead of it
        done = self.state.round
        if progress.record is None or done % self.experiment.checkpoint_every == 0 or done == self.plan.rounds:
            self.save()

    def _finish(self) -> None:
        summary = summarise(self.records, self.plan.held_out)
        result = {"method": self.experiment.method, "label": self.label, **summary}
        if self.folder is not None:
            self.folder.write_model(self.model_tensors(), self._description())
            self.folder.finish_checkpoints()
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
            self.folder.finish_checkpoints()
            self.folder.write_result(result)
        self.result = result

    def model_tensors(self) -> Mapping[str, Tensor]:
        """The averaged network by name, and the prototypes that go with it."""
        prototypes = {name: self.state.kept[name] for name in ("prototypes", "known")}
        return {**self.setting.layout.named(self.state.weights), **prototypes}

    def _description(self) -> Record:
        spec, normalisation = self.setting.spec, self.setting.normalisation
        return {
            "schema": 1,
            "class_names": list(self.images.class_names),
            "mean": list(normalisation.mean),
            "std": list(normalisation.std),
            "network": spec.name,
            "width": spec.width,
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

    store.restore(under("client/"))
    return State(
        round=int(values["round"]),
        started=True,
        weights=Weights.of(under("weights/")),
        kept=under("kept/"),
        bytes_up=int(values["bytes_up"]),
        bytes_down=int(values["bytes_down"]),
    )


def _prepare(experiment: Experiment, images: Images, library: Library, device: torch.device) -> tuple[Setting, Plan]:
    e = experiment
    dtype = torch.float64 if e.dtype == "float64" else torch.float32
    held = [
        hold_out(share, images.train.labels, e.val_fraction, e.data_seed, client)
        for client, share in enumerate(deal(e, images))
    ]
    spec = NetworkSpec(e.network, e.width, images.channels, images.side, images.classes, e.normalize_z, dtype)
    network = build(spec, e.model_seed)
    problem = Problem(e.rounds, images.classes, EMBEDDING, e.model_seed, dtype)
    method = METHODS[e.method](e.options, problem)
    validating = e.val_fraction > 0
    chosen = np.concatenate([val for _, val in held]) if validating else np.arange(len(images.test))
    if not len(chosen):
        raise InputError(f"--val-fraction {e.val_fraction}: leaves no validation sample; take a larger one")
    setting = Setting(
        method=method,
        spec=spec,
        network=network,
        layout=Layout.of(network),
        train=library.bank(images, "train", device),
        held_out=library.bank(images, "train" if validating else "test", device),
        held_out_indices=torch.from_numpy(chosen).to(device),
        shares=[torch.from_numpy(train).to(device) for train, _ in held],
        augmentation=AUGMENTATIONS[e.augment],
        normalisation=source_of(e.data).normalisation(images.channels),
        epochs=e.epochs,
        batch_size=e.batch_size,
        momentum=e.momentum,
        weight_decay=e.weight_decay,
        model_seed=e.model_seed,
        device=device,
    )
    plan = Plan(
        method=method,
        rounds=e.rounds,
        client_sizes=[len(train) for train, _ in held],
        sample=e.sample,
        lr=e.lr,
        eval_every=e.eval_every,
        model_seed=e.model_seed,
        batch_size=e.batch_size,
        held_out="val" if validating else "test",
    )
    return setting, plan
