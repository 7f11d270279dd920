"""Partitions of the training samples among clients (SPEC section 4), and how heterogeneous they are.

This step alone draws from numpy's RandomState, so that the draws agree with the public reference.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc import streams
from fedproc.data.images import Labels
from fedproc.errors import InputError
from fedproc.files import read_text

Indices = npt.NDArray[np.int64]
MOST_REDRAWS = 1000


def dirichlet(
    labels: npt.ArrayLike, clients: int, beta: float, seed: int, min_size: int = 10, capped: bool = True
) -> list[Indices]:
    """Skewed shares: per class Dirichlet(beta) over the clients, nothing more for a client that has N/m already
    (unless not `capped`). Everything is drawn again until each client holds at least `min_size` samples.
    """
    array = np.asarray(labels)
    _check(len(array), clients, min_size)
    _check_beta(beta)
    rng = np.random.RandomState(seed)
    classes = int(array.max()) + 1
    for _ in range(MOST_REDRAWS):
        shares = _draw(array, classes, clients, beta, rng, capped)
        if shares is not None and min(len(share) for share in shares) >= min_size:
            return shares
    raise _too_few(beta, clients, min_size)


def _check_beta(beta: float) -> None:
    if not beta > 0:
        raise InputError(f"beta {beta}: expected a number above 0")


def _too_few(beta: float, clients: int, min_size: int) -> InputError:
    return InputError(
        f"beta {beta} with clients {clients}: {MOST_REDRAWS} draws left some client with fewer than {min_size} "
        "samples; take a larger --beta, fewer --clients or a smaller --min-size"
    )


def _draw(
    labels: npt.NDArray[np.int64],
    classes: int,
    clients: int,
    beta: float,
    rng: np.random.RandomState,
    capped: bool,
) -> list[Indices] | None:
    held: list[list[Indices]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for k in range(classes):
        members = np.flatnonzero(labels == k)
        rng.shuffle(members)
        share = rng.dirichlet(np.repeat(beta, clients))
        if capped:
            share = share * (sizes < len(labels) / clients)
        total = share.sum()
        if not total > 0:  # a tiny beta can leave nothing for the clients below the cap
            return None
        cuts = (np.cumsum(share / total) * len(members)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(members, cuts)):
            held[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(pieces) for pieces in held]


def shards(labels: npt.ArrayLike, clients: int, per_client: int, seed: int) -> list[Indices]:
    """`per_client` classes per client, each class divided equally among those that hold it.

    Client i holds class i modulo K and others at random. Classes that no client drew stay unused.
    """
    array = np.asarray(labels)
    present = np.unique(array)
    if not 1 <= per_client <= len(present):
        raise InputError(f"classes-per-client {per_client}: expected 1 to {len(present)}, the classes of the data")
    _check(len(array), clients, 1)
    rng = np.random.RandomState(seed)
    holders: dict[int, list[int]] = {int(k): [] for k in present}
    for client in range(clients):
        first = int(present[client % len(present)])
        others = [int(k) for k in present if k != first]
        for k in (first, *rng.permutation(others)[: per_client - 1]):
            holders[int(k)].append(client)
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for k, mine in holders.items():
        members = np.flatnonzero(array == k)
        rng.shuffle(members)
        for client, piece in zip(mine, np.array_split(members, len(mine)) if mine else [], strict=True):
            held[client].append(piece)
    shares = [np.concatenate(pieces) for pieces in held]
    if min(len(share) for share in shares) == 0:
        raise InputError(f"clients {clients}: more than the samples of a class; take fewer --clients")
    return shares


def quantity(labels: npt.ArrayLike, clients: int, beta: float, seed: int, min_size: int = 10) -> list[Indices]:
    """Sizes drawn from Dirichlet(beta), classes in equal proportions."""
    count = len(np.asarray(labels))
    _check(count, clients, min_size)
    _check_beta(beta)
    rng = np.random.RandomState(seed)
    order = rng.permutation(count)
    for _ in range(MOST_REDRAWS):
        drawn = rng.dirichlet(np.repeat(beta, clients))
        if not np.isfinite(drawn).all():  # a tiny beta can draw nothing at all
            continue
        cuts = (np.cumsum(drawn) * count).astype(np.int64)[:-1]
        shares = [np.asarray(part) for part in np.split(order, cuts)]
        if min(len(share) for share in shares) >= min_size:
            return shares
    raise _too_few(beta, clients, min_size)


def natural(sites: Labels | None) -> list[Indices]:
    """The sites of the data: one client per site."""
    if sites is None:
        raise InputError(
            "--partition natural: the data names no sites; expected folders <site>/<class>/* with test/<class>/*, "
            "or a CSV file with a column site"
        )
    return [np.flatnonzero(sites == site) for site in np.unique(sites)]


def from_file(path: Path | None, count: int) -> list[Indices]:
    """A JSON file of indices into the training samples: one list per client, or an object of such lists."""
    if path is None:
        raise InputError("--partition file: needs --partition-file")
    found = _lists(path)
    owner: dict[int, int] = {}
    for client, share in enumerate(found):
        if not isinstance(share, list) or not share:
            raise InputError(f"--partition-file {path}: client {client} has no indices")
        for index in share:
            if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
                raise InputError(f"--partition-file {path}: client {client} has {index!r}, expected 0 to {count - 1}")
            if index in owner:
                raise InputError(f"--partition-file {path}: {index} is held by clients {owner[index]} and {client}")
            owner[index] = client
    return [np.array(share, dtype=np.int64) for share in found]


def clients_in_file(path: Path) -> int:
    """How many clients a partition file has."""
    return len(_lists(path))


def _lists(path: Path) -> list[Any]:
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"--partition-file {path}: cannot be read: {error}") from error
    if isinstance(found, dict):
        found = list(found.get("sites", found).values()) if isinstance(found.get("sites", found), dict) else None
    if not isinstance(found, list) or not found:
        raise InputError(f"--partition-file {path}: expected a list of lists of indices, or an object of them")
    return found


def iid(labels: npt.ArrayLike, clients: int, seed: int, min_size: int = 10) -> list[Indices]:
    """Equal shares of a random order."""
    count = len(np.asarray(labels))
    _check(count, clients, min_size)
    return [np.asarray(part) for part in np.array_split(np.random.RandomState(seed).permutation(count), clients)]


def _check(count: int, clients: int, min_size: int) -> None:
    if clients < 1:
        raise InputError(f"clients {clients}: expected at least 1")
    if clients * min_size > count:
        raise InputError(
            f"clients {clients} with min-size {min_size}: needs {clients * min_size} samples, the data has {count}; "
            "take fewer --clients or a smaller --min-size"
        )


PARTITIONS: dict[str, str] = {
    "dirichlet": "each class divided by Dirichlet(--beta), no client far above N/m; smaller beta, more skew",
    "dirichlet-plain": "the same without the cap",
    "shards": "--classes-per-client classes per client",
    "quantity": "sizes by Dirichlet(--beta), classes in equal proportions",
    "iid": "equal random shares",
    "natural": "one client per site of the data; sets the number of clients",
    "file": "indices from --partition-file; sets the number of clients",
}

BY_BETA = ("dirichlet", "dirichlet-plain", "quantity")  # what --beta is for
BY_MIN_SIZE = (*BY_BETA, "iid")


@dataclass(frozen=True)
class Deal:
    """The parameters of a partition."""

    kind: str
    clients: int
    beta: float
    seed: int
    min_size: int
    per_client: int = 2
    file: Path | None = None

    def shares(self, labels: Labels, sites: Labels | None = None) -> list[Indices]:
        """Each client's indices into the training samples."""
        match self.kind:
            case "dirichlet" | "dirichlet-plain":
                capped = self.kind == "dirichlet"
                return dirichlet(labels, self.clients, self.beta, self.seed, self.min_size, capped)
            case "shards":
                return shards(labels, self.clients, self.per_client, self.seed)
            case "quantity":
                return quantity(labels, self.clients, self.beta, self.seed, self.min_size)
            case "iid":
                return iid(labels, self.clients, self.seed, self.min_size)
            case "natural":
                return natural(sites)
            case "file":
                return from_file(self.file, len(labels))
        raise InputError(f"--partition {self.kind}: expected one of {', '.join(PARTITIONS)}")


def hold_out(
    shares: Sequence[Indices],
    labels: Labels,
    fraction: float,
    seed: int,
    groups: Labels | None = None,
    first: int = 0,
) -> list[tuple[Indices, Indices]]:
    """(training, validation) samples of each client, at least one left for training: stratified, or where samples
    belong to groups whole groups, at whichever clients their samples are. `first` is the first client's number.
    """
    if fraction == 0:
        return [(share, share[:0]) for share in shares]
    if groups is not None:
        return _hold_out_groups(shares, groups, fraction, seed)
    return [_hold_out_samples(share, labels, fraction, seed, client) for client, share in enumerate(shares, first)]


def _hold_out_groups(
    shares: Sequence[Indices], groups: Labels, fraction: float, seed: int
) -> list[tuple[Indices, Indices]]:
    """In the order of a hash, each group with most of its samples at clients that still lack some."""
    names, numbers = np.unique(groups, return_inverse=True)
    held = np.stack([np.bincount(numbers[share], minlength=len(names)) for share in shares])
    sizes = held.sum(axis=1)
    taken = np.zeros(len(shares), dtype=np.int64)
    chosen = np.zeros(len(names), dtype=bool)
    for name in streams.order(streams.key(seed, streams.Purpose.VALIDATION), len(names)).tolist():
        own = held[:, name]
        lacking = own[taken < fraction * sizes].sum()
        if 2 * lacking > own.sum() and bool(((taken + own < sizes) | (own == 0)).all()):
            chosen[name] = True
            taken += own
    return [(share[~chosen[numbers[share]]], share[chosen[numbers[share]]]) for share in shares]


def _hold_out_samples(
    share: Indices, labels: Labels, fraction: float, seed: int, client: int
) -> tuple[Indices, Indices]:
    chosen = np.zeros(len(share), dtype=bool)
    for k in np.unique(labels[share]):
        members = np.flatnonzero(labels[share] == k)
        at = streams.key(seed, streams.Purpose.VALIDATION, client, int(k))
        drawn = streams.order(at, len(members)).numpy()
        chosen[members[drawn[: round(fraction * len(members))]]] = True
    if chosen.all():
        chosen[0] = False
    return share[~chosen], share[chosen]


def deal_test(labels: Labels, counts: npt.NDArray[np.int64], seed: int) -> Indices:
    """The client of each test sample: every class divided by the clients' shares of it; -1: no client."""
    owner = np.full(len(labels), -1, dtype=np.int64)
    for k in range(counts.shape[1]):
        members = np.flatnonzero(labels == k)
        total = counts[:, k].sum()
        if not len(members) or not total:
            continue
        order = streams.order(streams.key(seed, streams.Purpose.TEST_SHARES, k), len(members)).numpy()
        cuts = (np.cumsum(counts[:, k]) * len(members) // total)[:-1]
        for client, piece in enumerate(np.split(members[order], cuts)):
            owner[piece] = client
    return owner


def class_counts(shares: list[Indices], labels: Labels, classes: int) -> npt.NDArray[np.int64]:
    """(clients, classes): how many samples of each class each client holds."""
    return np.stack([np.bincount(labels[share], minlength=classes) for share in shares])


def heterogeneity(counts: npt.NDArray[np.int64]) -> float:
    """How far clients are from the whole: the mean over samples of the total variation distance between
    their client's class shares and everyone's. 0: all alike; towards 1: no class at two clients.
    """
    sizes = counts.sum(axis=1, keepdims=True)
    own = counts / np.maximum(sizes, 1)
    whole = counts.sum(axis=0) / counts.sum()
    distance = 0.5 * np.abs(own - whole).sum(axis=1)
    return float((distance * sizes[:, 0]).sum() / sizes.sum())
