"""An experiment's data dealt out and its network built: what lanes and the round loop are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedproc.data import SOURCES, Images, load, source_of
from fedproc.data.augment import AUGMENTATIONS
from fedproc.data.partition import Deal, Indices, class_counts, deal_test, hold_out
from fedproc.errors import InputError
from fedproc.evaluate import HeldOut
from fedproc.experiment import Experiment
from fedproc.lanes import Bank, Setting
from fedproc.methods import METHODS
from fedproc.methods.fedavg import Problem
from fedproc.networks import EMBEDDING, Layout, NetworkSpec, build, load_encoder
from fedproc.rounds import Plan


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


def client_names(experiment: Experiment, images: Images) -> list[str]:
    """What the clients are called, where they are the data's own sites; others go by their number."""
    if experiment.partition != "natural" or images.train.sites is None:
        return []
    return [images.site_names[site] for site in np.unique(images.train.sites)]


def prepare(experiment: Experiment, images: Images, library: Library, device: torch.device) -> tuple[Setting, Plan]:
    e = experiment
    dtype = torch.float64 if e.dtype == "float64" else torch.float32
    kind = METHODS[e.method]
    shares = deal(e, images)
    train = images.train
    held = hold_out(shares, train.labels, e.val_fraction, e.data_seed, train.groups)
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
        layout=Layout.of(network, channels_last=spec.name.startswith("resnet")),
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
    return HeldOut(bank.images, bank.labels, *where, clients=len(training), whole=part == "test")
