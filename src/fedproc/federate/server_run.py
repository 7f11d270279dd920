"""The server's side of a run, without a wire: whom to ask, what all agreed upon, the record in its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedproc.assembly import Subject, assemble
from fedproc.data import FEDERATION
from fedproc.data import folder as folders
from fedproc.data.augment import Normalisation
from fedproc.data.names import alike, normal
from fedproc.data.pixels import PixelSums
from fedproc.errors import InputError, RunError
from fedproc.experiment import Experiment
from fedproc.federate.joining import Joined, Seen
from fedproc.files import write_json
from fedproc.lanes import Bank, Executor, Setting, choose
from fedproc.lanes.evaluate import HeldOut
from fedproc.methods.plugin import plugin_hash
from fedproc.networks import encoder_file
from fedproc.protocol.guard import Refused
from fedproc.protocol.plan import EvaluatesAt
from fedproc.protocol.task import SERVER
from fedproc.runs.keeper import Keeper
from fedproc.runs.schema import read_config, read_json
from fedproc.site import OwnState, Site

AGREED = ".agreed.json"


@dataclass(frozen=True)
class Agreement:
    """What holds for all sites from the first round on, and who has ever taken part, in the order of joining."""

    class_names: tuple[str, ...]
    channels: int
    side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    batch_size: int
    epochs: int
    sites: tuple[str, ...] = ()
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)

    @property
    def subject(self) -> Subject:
        return Subject(self.class_names, self.channels, self.side, Normalisation(self.mean, self.std))

    def settled(self, experiment: Experiment) -> Experiment:
        """The experiment with what followed the sites' images."""
        return experiment.model_copy(update={"batch_size": self.batch_size, "epochs": self.epochs})

    def with_site(self, name: str, counts: Sequence[int], samples: int) -> Agreement:
        """One more site, or one that is back."""
        sites = self.sites if name in self.sites else (*self.sites, name)
        return replace(
            self, sites=sites, counts={**self.counts, name: tuple(counts)}, samples={**self.samples, name: samples}
        )

    def save(self, folder: Path) -> None:
        """Beside the run's folder, which may not be there yet."""
        write_json(folder.with_name(folder.name + AGREED), asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Agreement | None:
        path = folder.with_name(folder.name + AGREED)
        found = read_json(path)
        if found is None:
            return None
        try:
            return cls(
                tuple(found["class_names"]), int(found["channels"]), int(found["side"]),
                tuple(found["mean"]), tuple(found["std"]), int(found["batch_size"]), int(found["epochs"]),
                tuple(found["sites"]),
                {name: tuple(each) for name, each in found["counts"].items()}, dict(found["samples"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{path}: cannot be read: {error!r}") from error


def agree_on_look(
    joined: Mapping[str, Joined], classes: Sequence[str] | None, image_size: int | None
) -> tuple[tuple[str, ...], int, int]:
    """Class names, channels and side for all sites that joined."""
    names = sorted({normal(name) for each in joined.values() for name in (*each.classes, *(classes or ()))})
    for one, other in alike(names):
        raise RunError(f"sites have classes {one} and {other}, which look alike: rename one, or say --classes")
    if len(names) < 2:
        raise RunError(f"the sites have one class only ({names[0]}); expected two at least")
    channels = max(each.channels for each in joined.values())
    sides = {each.side for each in joined.values()}
    side = image_size or (sides.pop() if len(sides) == 1 else 32)
    return tuple(names), channels, side


def pooled_pixels(seen: Mapping[str, Seen], channels: int) -> Normalisation:
    """Mean and deviation over the training images of all sites."""
    total: PixelSums | None = None
    for name in sorted(seen):
        each = checked_seen(seen[name], channels, len(seen[name].counts))
        total = each if total is None else total + each
    if total is None:
        raise RunError("no site told the sums of its images")
    return total.normalisation()


def checked_seen(seen: Seen, channels: int, classes: int) -> PixelSums:
    """Sums and counts that can be those of images."""
    if len(seen.counts) != classes:
        raise Refused(f"counts of {len(seen.counts)} classes, expected {classes}")
    if len(seen.sums) != channels or len(seen.squares) != channels:
        raise Refused(f"sums of {len(seen.sums)} channels, expected {channels}")
    for total, squares in zip(seen.sums, seen.squares, strict=True):
        if total > 255 * seen.pixels or squares > 255**2 * seen.pixels or total**2 > squares * seen.pixels:
            raise Refused("sums that no images have")
    return PixelSums(tuple(seen.sums), tuple(seen.squares), seen.pixels)


def code_of(experiment: Experiment) -> tuple[str | None, str | None]:
    """The hashes of the plugin's and the network's files, which must be the same everywhere and are never sent."""
    source = encoder_file(experiment.network) if ":" in experiment.network else None
    network = hashlib.sha256(source.read_bytes()).hexdigest() if source is not None else None
    return plugin_hash(experiment.method, experiment.plugin), network


def _evaluates_at(experiment: Experiment, server_test: str | None) -> EvaluatesAt:
    """Sites of a private run tell nothing of their own test images."""
    if experiment.privacy is not None:
        if server_test is None:
            raise InputError("--server-test: needed by a private run, whose sites do not tell how they fare")
        return "server"
    return "clients" if server_test is None else "both"


class ServerRun(Keeper):
    """A run as the server keeps it. Sites' states stay at the sites."""

    def __init__(self, experiment: Experiment, run: str, agreement: Agreement, server_test: str | None) -> None:
        self.agreement = a = agreement
        assembly = assemble(experiment, a.subject)
        plan = assembly.plan(a.sites, run, _evaluates_at(experiment, server_test), federation=True)
        super().__init__(experiment, experiment.method, assembly, plan, torch.device("cpu"))
        self._setting: Setting | None = None
        self._held_out: HeldOut | None = None
        if server_test is not None:
            look = (a.class_names, a.side, a.channels, experiment.fit)
            bank = Bank.of(folders.read_flat(Path(server_test), *look), self.device)
            self._setting = assembly.setting(bank, self.device)
            index = torch.arange(len(bank.labels))
            nobody = torch.full_like(index, -1)
            self._held_out = HeldOut(bank.images, bank.labels, index, nobody, clients=len(a.sites), whole=True)

    @contextmanager
    def executor(self) -> Iterator[Executor | None]:
        """What evaluates on the server's own test images, where it has some."""
        if self._setting is None:
            yield None
            return
        made = choose("serial", 1, None, [self._setting], 1)
        try:
            yield made
        finally:
            made.close()

    def server_site(self) -> Site:
        """The server as one that evaluates."""
        if self._setting is None:
            raise RunError("the server has no test images")
        return Site(SERVER, "server", self._setting, None, OwnState(), self._held_out)

    def fingerprint(self) -> str:
        """Of what all have agreed upon; the images are at the sites, which compare their own."""
        a = self.agreement
        said = json.dumps([a.class_names, a.channels, a.side, a.mean, a.std])
        return hashlib.sha256(said.encode()).hexdigest()

    def held_counts(self) -> list[list[int]]:
        return [list(self.agreement.counts[site]) for site in self.agreement.sites]

    def client_names(self) -> Sequence[str]:
        return self.agreement.sites

    @property
    def config(self) -> dict[str, Any]:
        """As it was when the run began: sites that join later do not make it another."""
        config = {**super().config, "data": FEDERATION, "clients": len(self.agreement.sites), "partition": "natural"}
        known = read_config(self.folder.path / "config.json") if self.folder is not None else None
        return {**config, "clients": known["clients"]} if known is not None and "clients" in known else config

    def admit(self) -> None:
        """Tell the round loop how many images each site has; those it knows keep what it knows."""
        sizes = [self.agreement.samples.get(site, 0) for site in self.agreement.sites]
        state, holdings = self._now
        for place, known in enumerate(state.sizes):
            sizes[place] = known or sizes[place]
        accepted = (*state.accepted, *(-1,) * (len(sizes) - len(state.accepted)))
        self._now = (replace(state, sizes=tuple(sizes), accepted=accepted), holdings)
