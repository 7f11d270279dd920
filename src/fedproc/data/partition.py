"""Who holds what: deal the training samples out to clients (SPEC section 4), and measure how uneven it is.

This step alone draws from numpy's RandomState, so that the draws agree with the public reference.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedproc import streams
from fedproc.data.images import Labels
from fedproc.errors import InputError

Indices = npt.NDArray[np.int64]
MOST_REDRAWS = 1000


def dirichlet(labels: npt.ArrayLike, clients: int, beta: float, seed: int, min_size: int = 10) -> list[Indices]:
    """Skewed shares: per class Dirichlet(beta) over the clients, nothing more for one that has N/m already.

    Everything is drawn again until each client holds at least `min_size` samples.
    """
    array = np.asarray(labels)
    _check(len(array), clients, min_size)
    if not beta > 0:
        raise InputError(f"beta {beta}: expected a number above 0")
    rng = np.random.RandomState(seed)
    classes = int(array.max()) + 1
    for _ in range(MOST_REDRAWS):
        shares = _draw(array, classes, clients, beta, rng)
        if shares is not None and min(len(share) for share in shares) >= min_size:
            return shares
    raise InputError(
        f"beta {beta} with clients {clients}: {MOST_REDRAWS} draws left some client with fewer than {min_size} "
        "samples; take a larger --beta, fewer --clients or a smaller --min-size"
    )


def _draw(
    labels: npt.NDArray[np.int64], classes: int, clients: int, beta: float, rng: np.random.RandomState
) -> list[Indices] | None:
    held: list[list[Indices]] = [[] for _ in range(clients)]
    sizes = np.zeros(clients, dtype=np.int64)
    for k in range(classes):
        members = np.flatnonzero(labels == k)
        rng.shuffle(members)
        share = rng.dirichlet(np.repeat(beta, clients)) * (sizes < len(labels) / clients)
        total = share.sum()
        if not total > 0:  # a tiny beta can leave nothing to those still below their part
            return None
        cuts = (np.cumsum(share / total) * len(members)).astype(np.int64)[:-1]
        for client, piece in enumerate(np.split(members, cuts)):
            held[client].append(piece)
            sizes[client] += len(piece)
    return [np.concatenate(pieces) for pieces in held]


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
    "dirichlet": "each class dealt out by Dirichlet(--beta); smaller beta, more skew",
    "iid": "equal random shares",
}


def partition(kind: str, labels: Labels, clients: int, beta: float, seed: int, min_size: int) -> list[Indices]:
    """The partition by its name in PARTITIONS."""
    deal: dict[str, Callable[[], list[Indices]]] = {
        "dirichlet": lambda: dirichlet(labels, clients, beta, seed, min_size),
        "iid": lambda: iid(labels, clients, seed, min_size),
    }
    return deal[kind]()


def hold_out(share: Indices, labels: Labels, fraction: float, seed: int, client: int) -> tuple[Indices, Indices]:
    """(training, validation) samples of one client, stratified, at least one left for training."""
    if fraction == 0:
        return share, share[:0]
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
    """Whose share of the test set each sample is: every class dealt out by the clients' shares of it; -1: nobody's."""
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
    their client's class shares and everyone's. 0: all alike; towards 1: no class at two places.
    """
    sizes = counts.sum(axis=1, keepdims=True)
    own = counts / np.maximum(sizes, 1)
    whole = counts.sum(axis=0) / counts.sum()
    distance = 0.5 * np.abs(own - whole).sum(axis=1)
    return float((distance * sizes[:, 0]).sum() / sizes.sum())
