"""An experiment's data dealt out and its network built: what sites and the round loop are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedproc import streams
from fedproc.data import SOURCES, Images, load, source_of
from fedproc.data.augment import AUGMENTATIONS
from fedproc.data.partition import Deal, Indices, class_counts, deal_test, hold_out
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.lanes import Bank, ClientData, Setting
from fedproc.lanes.evaluate import HeldOut
from fedproc.methods.checked_client import CheckedClient
from fedproc.methods.checked_server import CheckedServer, holdings, made_method
from fedproc.methods.merges import MERGES
from fedproc.methods.method import ClientProblem, ServerProblem, TensorInfo
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.networks import EMBEDDING, NetworkSpec, build, layout_of, load_encoder
from fedproc.protocol.plan import Plan
from fedproc.protocol.weights import Weights


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


def site_names(experiment: Experiment, images: Images) -> list[str]:
    """What the clients are called, where they are the data's own sites; others go by their number."""
    if experiment.partition != "natural" or images.train.sites is None:
        return []
    return [images.site_names[site] for site in np.unique(images.train.sites)]


@dataclass(frozen=True)
class Prepared:
    """An experiment ready to run: what its lanes, its round loop and its clients are."""

    setting: Setting
    plan: Plan
    clients: list[ClientData]
    held_out: HeldOut


def prepare(
    experiment: Experiment, images: Images, library: Library, device: torch.device, run: str = ""
) -> Prepared:  # fmt: skip
    e = experiment
    dtype = torch.float64 if e.dtype == "float64" else torch.float32
    kind = e.method_type
    train = images.train
    held = hold_out(deal(e, images), train.labels, e.val_fraction, e.data_seed, train.groups)
    training = holdings(kind, [own for own, _ in held], len(train.labels))
    spec = network_spec(e, images)
    network = build(spec, e.model_seed)
    if e.encoder_weights is not None:
        load_encoder(network, e.encoder_weights)
    layout = layout_of(network, spec)
    at_client = ClientProblem(
        classes=images.classes,
        features=EMBEDDING,
        dtype=dtype,
        momentum=e.momentum,
        calibrate=e.calibrate,
        calibrate_prototypes=e.calibrate if e.calibrate_prototypes is None else e.calibrate_prototypes,
    )
    at_server = ServerProblem(
        rounds=e.rounds,
        epochs=e.epochs,
        model_seed=e.model_seed,
        server_beta=e.server_beta,
        server_lr=e.server_lr,
    )
    method = made_method(kind, e.options, at_client, at_server)
    server = CheckedServer(method)
    shared = layout.shared(lambda name, shape, layer: server.personal(TensorInfo(name, shape, layer)))
    if shared is not None and e.average_weights:
        raise InputError(f"--average-weights {e.average_weights}: {e.method} has models of each client's own")
    if shared is not None and e.ccvr != "none":
        raise InputError(f"--ccvr {e.ccvr}: {e.method} has models of each client's own; leave it out")
    bank = library.bank(images, "train", device)
    setting = Setting(
        method=CheckedClient(method.client_half(), shared),
        spec=spec,
        network=network,
        layout=layout,
        train=bank,
        augmentation=AUGMENTATIONS[e.augment],
        normalisation=source_of(e.data).normalisation(images.channels),
        batch_size=e.batch_size,
        momentum=e.momentum,
        weight_decay=e.weight_decay,
        model_seed=e.model_seed,
        device=device,
    )
    names = site_names(e, images)
    plan = Plan(
        method=server,
        rounds=server.rounds,
        clients=names if len(names) == len(training) else [str(client) for client in range(len(training))],
        sample=e.sample,
        lr=e.lr,
        eval_every=e.eval_every,
        model_seed=e.model_seed,
        batch_size=e.batch_size,
        held_out="val" if e.val_fraction > 0 else "test",
        merge=MERGES[e.merge or kind.merge],
        server_step=SERVER_STEPS[e.server_step or kind.server_step],
        lr_schedule=e.lr_schedule,
        lr_floor=e.lr_floor,
        average_weights=e.average_weights,
        send_averaged=e.send_averaged,
        classifier=layout.span("classifier."),
        shared=shared,
        run=run,
    )
    indices = [torch.from_numpy(own).to(device) for own in training]
    clients = ClientData.of_all(indices, bank.labels, spec.classes, dtype)
    held_out = _held_out(e, images, [val for _, val in held], training, library, device)
    return Prepared(setting, plan, clients, held_out)


def network_spec(experiment: Experiment, images: Images) -> NetworkSpec:
    e = experiment
    dtype = torch.float64 if e.dtype == "float64" else torch.float32
    unit_z = e.normalize_z or e.method_type.unit_z
    return NetworkSpec(e.network, e.width, images.channels, images.side, images.classes, unit_z, dtype, e.norm)


def fresh_weights(experiment: Experiment, setting: Setting, number: int) -> Weights:
    """The n-th other set of initial weights."""
    network = build(setting.spec, streams.fold(experiment.model_seed, number) % 2**32)
    if experiment.encoder_weights is not None:
        load_encoder(network, experiment.encoder_weights)
    weights = setting.layout.read(network)
    return Weights(*(tensor.to(setting.device) for tensor in weights.tensors().values()))


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
        if len(training) != len(validation):  # clients that are none of the partition's
            owner = np.zeros_like(owner) if len(training) == 1 else np.full_like(owner, -1)
    else:
        part, index = "test", np.arange(len(images.test))
        counts = class_counts(list(training), images.train.labels, images.classes)
        owner = deal_test(images.test.labels, counts, e.data_seed)
    bank = library.bank(images, part, device)
    where = (torch.from_numpy(index).to(device), torch.from_numpy(owner).to(device))
    return HeldOut(bank.images, bank.labels, *where, clients=len(training), whole=part == "test")
