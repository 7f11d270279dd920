"""Which runs are trained together: groups of similar work, each one pool of lanes in one worker."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedproc.assembly import network_spec
from fedproc.experiment import Experiment
from fedproc.networks import NetworkSpec
from fedproc.networks.cost import cost
from fedproc.runs.keeper import Fresh
from fedproc.runs.schema import read_json
from fedproc.simulation.preparation import Library, subject_of

DEARER = {"moon": 4.0}  # times FedAvg's work: measured in a sweep on a GPU (docs/speed.md)
WAVES = 4  # clients a core that a group on CPUs has at least, so that few cores wait for a round's last client


@dataclass(frozen=True)
class Work:
    """What is left to do of a run: floating point operations, and how many clients train at once. Runs whose `alike` is
    the same share most when they are trained together.
    """

    label: str
    operations: float
    cohort: int
    alike: str
    forward: float  # operations of a batch forward


@dataclass
class Group:
    """Runs that one worker trains together; how often workers died in it since a round of it was last done."""

    number: int
    labels: list[str]
    deaths: int = 0
    not_before: float = 0.0  # when it may go on
    said: list[str] = field(default_factory=list)  # what there is to say of it when it goes on
    began: float = 0.0  # when its worker did
    rounds: Counter[str] = field(default_factory=Counter)  # of each run, done by this worker

    def pace(self) -> float | None:
        """Seconds that a round of all its runs took on average, the first ones and what they need included; those that
        were over before do not count.
        """
        return (time.monotonic() - self.began) / max(self.rounds.values()) if self.rounds else None


def estimated(experiments: Mapping[str, tuple[Experiment, Path | None]], library: Library, fresh: Fresh) -> list[Work]:
    """What is left to do of each run."""
    forward: dict[NetworkSpec, float] = {}
    found = []
    for label, (e, path) in experiments.items():
        images = library.images(e)
        spec = network_spec(e, subject_of(e, images))
        if spec not in forward:
            forward[spec] = cost(library.network(spec, e.model_seed), spec.channels, spec.side).operations
        epochs = float(e.options.model_dump().get("epochs", e.rounds * e.epochs))
        samples = len(images.train) * (1 - e.val_fraction) * e.sample * epochs * left(path, e.rounds, fresh)
        operations = 3 * forward[spec] * samples * DEARER.get(e.method, 1.0)
        alike = json.dumps([repr(spec), e.method, e.options.model_dump(mode="json")], sort_keys=True)
        cohort = max(1, round(e.clients * e.sample))
        found.append(Work(label, operations, cohort, alike, forward[spec] * e.batch_size))
    return found


def left(path: Path | None, rounds: int, fresh: Fresh) -> float:
    """The share of a run's rounds that are still to be done."""
    if path is None or fresh is True or not (path / "metrics.jsonl").is_file():
        return 1.0
    if fresh == "unfinished" and not (path / "result.json").is_file():
        return 1.0
    result = read_json(path / "result.json") or {}
    config = read_json(path / "config.json") or {}
    if result.get("status") == "diverged" or (result and config.get("rounds") == rounds):
        return 0.0
    done = (path / "metrics.jsonl").read_bytes().count(b"\n")
    return max(0.0, 1 - done / rounds)


def grouped(works: Sequence[Work], count: int) -> list[Group]:
    """So many groups of about the same work, the one with the most first: the largest run first, each to the group with
    the least so far. Which of equally large runs go where is free: those that are alike go together.
    """
    count = max(1, min(count, len(works)))
    load, labels = [0.0] * count, [list[str]() for _ in range(count)]
    by_size: dict[float, list[Work]] = {}
    for work in works:
        by_size.setdefault(work.operations, []).append(work)
    for size in sorted(by_size, reverse=True):
        places = []
        for _ in by_size[size]:
            places.append(load.index(min(load)))
            load[places[-1]] += size
        for work, at in zip(sorted(by_size[size], key=lambda work: work.alike), sorted(places), strict=True):
            labels[at].append(work.label)
    order = {work.label: place for place, work in enumerate(works)}
    heaviest = sorted(range(count), key=lambda at: -load[at])
    found = (sorted(labels[at], key=order.__getitem__) for at in heaviest if labels[at])
    return [Group(number, each) for number, each in enumerate(found)]


def imbalance(works: Sequence[Work], count: int) -> float:
    """How much more than its share of the work the largest of so many groups has."""
    of = {work.label: work.operations for work in works}
    largest = max(sum(of[label] for label in group.labels) for group in grouped(works, count))
    return round(largest * count / sum(of.values()), 3)


def groups_on_cpu(works: Sequence[Work], workers: int, cores: int) -> list[Group]:
    """Serial lanes gain nothing from pooling but full cores: groups are as small as keeps `cores` cores busy, so that a
    worker that is done early takes over from the others.
    """
    size = max(1, -(-WAVES * cores // min(work.cohort for work in works))) if cores > 1 else 1
    return grouped(works, max(workers, len(works) // size))
