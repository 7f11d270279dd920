"""An experiment's data dealt out and its network built: what sites and the round loop are made from."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedproc.assembly import Assembly, Subject, assemble
from fedproc.attacks import ATTACKS, expect_some, flipped_labels, hostile_clients
from fedproc.data import SOURCES, Images, load, source_of
from fedproc.data.partition import Deal, Indices, class_counts, deal_test, hold_out
from fedproc.data.pixels import PixelSums
from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.lanes import Bank, ClientData, Setting
from fedproc.lanes.evaluate import HeldOut
from fedproc.methods.checked_server import holdings
from fedproc.networks import Network, NetworkSpec, build
from fedproc.protocol.plan import Plan


@dataclass
class Library:
    """Data sets read once and put on each device once, and networks made once of a seed, however many experiments share
    them.
    """

    _images: dict[tuple[object, ...], Images]
    _banks: dict[tuple[int, str, torch.device], Bank]
    _networks: dict[tuple[NetworkSpec, int], Network]

    def __init__(self) -> None:
        self._images = {}
        self._banks = {}
        self._networks = {}

    @staticmethod
    def key(experiment: Experiment) -> tuple[object, ...]:
        """Experiments that agree here have the same images; words and numbers alone."""
        e = experiment
        where = None if e.data_dir is None else str(e.data_dir)
        own = () if e.data in SOURCES else (e.test_fraction, e.data_seed, e.fit, e.skip_unreadable)
        return (e.data, where, e.image_size, *own)

    def put(self, key: tuple[object, ...], images: Images) -> None:
        """Have images that were read elsewhere."""
        self._images[key] = images

    def images(self, experiment: Experiment) -> Images:
        e, at = experiment, self.key(experiment)
        if at not in self._images:
            split = (e.test_fraction, e.data_seed)
            self._images[at] = load(e.data, e.data_dir, e.image_size, *split, e.fit, e.skip_unreadable)
        return self._images[at]

    def bank(self, images: Images, part: str, device: torch.device) -> Bank:
        at = (id(images), part, device)
        if at not in self._banks:
            self._banks[at] = Bank.of(images.train if part == "train" else images.test, device)
        return self._banks[at]

    def network(self, spec: NetworkSpec, seed: int) -> Network:
        """A network with its initial weights, the caller's own. Those of a person's own class are made each time."""
        if spec.foreign:
            return build(spec, seed)
        if (spec, seed) not in self._networks:
            self._networks[spec, seed] = build(spec, seed)
        return copy.deepcopy(self._networks[spec, seed])


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

    assembly: Assembly
    setting: Setting
    plan: Plan
    clients: list[ClientData]
    held_out: HeldOut
    test: HeldOut  # the same, unless validation images are held out
    hostile: frozenset[int] = frozenset()


def prepare(
    experiment: Experiment, images: Images, library: Library, device: torch.device, run: str = ""
) -> Prepared:  # fmt: skip
    e = experiment
    train = images.train
    held = hold_out(deal(e, images), train.labels, e.val_fraction, e.data_seed, train.groups)
    training = holdings(e.method_type, [own for own, _ in held], len(train.labels))
    assembly = assemble(e, subject_of(e, images), library.network)
    bank = library.bank(images, "train", device)
    names = site_names(e, images)
    numbers = [str(client) for client in range(len(training))]
    real = bool(names) and len(names) == len(training)
    owned = real and (images.test.sites is not None or (e.val_fraction > 0 and e.keep == "last"))
    plan = assembly.plan(names if real else numbers, run, real_sites=owned)
    indices = [torch.from_numpy(own).to(device) for own in training]
    hostile = _hostile(e, assembly, len(indices))
    if e.attack is not None and ATTACKS[e.attack].labels:
        flipped = flipped_labels(bank.labels, [indices[client] for client in hostile], images.classes)
        bank = replace(bank, labels=flipped)
    clients = ClientData.of_all(indices, bank.labels, images.classes, assembly.spec.dtype)
    test = _test(e, images, training, len(held), library, device)
    held_out = _validation(e, images, [val for _, val in held], training, library, device) if e.val_fraction else test
    return Prepared(assembly, assembly.setting(bank, device), plan, clients, held_out, test, frozenset(hostile))


def _hostile(experiment: Experiment, assembly: Assembly, clients: int) -> list[int]:
    """Who is hostile, in experiments with an attack."""
    e = experiment
    if e.attack is None or e.attackers is None:
        return []
    expect_some(e.attack, e.attackers, clients)
    server = assembly.server
    passes = [each for each in (*server.opening(), *server.passes(0), *server.closing()) if not each.counts_only]
    if ATTACKS[e.attack].prototypes and not passes and server.class_means(0) is None:
        raise InputError(f"--attack {e.attack}: {e.method} asks clients for no class means; take another attack")
    return hostile_clients(e.attackers, clients, e.model_seed)


def subject_of(experiment: Experiment, images: Images) -> Subject:
    """What the images are of, and how they are normalised."""
    if experiment.normalize == "measured":
        normalisation = PixelSums.of(images.train.images).normalisation()
    else:
        normalisation = source_of(experiment.data).normalisation(images.channels)
    return Subject(images.class_names, images.channels, images.side, normalisation)


def _validation(
    e: Experiment,
    images: Images,
    validation: Sequence[Indices],
    training: Sequence[Indices],
    library: Library,
    device: torch.device,
) -> HeldOut:
    """The clients' own validation samples."""
    index = np.concatenate(validation)
    if not len(index):
        raise InputError(f"--val-fraction {e.val_fraction}: leaves no validation sample; take a larger one")
    owner = np.repeat(np.arange(len(validation)), [len(val) for val in validation])
    if len(training) != len(validation):  # clients that are none of the partition's
        owner = np.zeros_like(owner) if len(training) == 1 else np.full_like(owner, -1)
    return _held_out(library.bank(images, "train", device), index, owner, len(training), False)


def _test(
    e: Experiment, images: Images, training: Sequence[Indices], dealt: int, library: Library, device: torch.device
) -> HeldOut:
    """The test images: each site's own, or dealt out by the clients' class shares."""
    index = np.arange(len(images.test))
    if e.partition == "natural" and images.test.sites is not None and len(training) == dealt:
        sites = np.unique(images.train.sites) if images.train.sites is not None else index[:0]
        place = np.searchsorted(sites, images.test.sites).clip(max=max(0, len(sites) - 1))
        owner = np.where(sites[place] == images.test.sites, place, -1)  # -1: of a site that has only test images
    else:
        counts = class_counts(list(training), images.train.labels, images.classes)
        owner = deal_test(images.test.labels, counts, e.data_seed)
    return _held_out(library.bank(images, "test", device), index, owner, len(training), True)


def _held_out(bank: Bank, index: Indices, owner: Indices, clients: int, whole: bool) -> HeldOut:
    device = bank.labels.device
    where = (torch.from_numpy(index).to(device), torch.from_numpy(owner).to(device))
    return HeldOut(bank.images, bank.labels, *where, clients=clients, whole=whole)
