"""What each real site has of a model: its accuracy on the site's own test images, and the gain over training alone,
with intervals by bootstrap.

Where predictions.csv tells every image, whole groups (patients) are drawn again, the same for all models that are
compared and for all seeds, so that differences are paired; where a federation tells counts only, images are drawn as if
they had nothing to do with each other, which makes intervals of differences wider.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc.beside import ALONE, FINE_TUNED
from fedproc.errors import InputError
from fedproc.runs.keeper import file_hash
from fedproc.runs.lines import read_lines
from fedproc.runs.schema import SitesLine, read_json

Floats = npt.NDArray[np.float64]
DRAWS, AT_ONCE = 2000, 200
TEST = "test-predictions.csv"  # of runs that hold validation images out
LOW, HIGH = 2.5, 97.5
FEWEST = 10  # images or groups of which an interval is told: a handful that agree would look certain
MEAN = "mean"
NEEDED = ("path", "site", "group", "class", "predicted")


@dataclass(frozen=True)
class Outcome:
    """What one run got right at one site: images and correct answers of each group, or in all where nothing says which
    image is which.
    """

    groups: tuple[str, ...]
    images: Floats
    correct: Floats

    @property
    def accuracy(self) -> float:
        return float(self.correct.sum() / self.images.sum())


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, and where 95 % of the draws lie; not a number where there are too few to tell."""

    value: float
    low: float
    high: float

    @property
    def told(self) -> bool:
        return not math.isnan(self.low)


@dataclass(frozen=True)
class SiteRow:
    """One method at one site, in shares of 1, of test or validation images. Alone and fine-tuned are None where there
    was no such run.
    """

    site: str
    label: str
    held_out: str
    images: float
    groups: float
    seeds: int
    federated: Interval
    alone: Interval | None = None
    gain: Interval | None = None
    fine_tuned: Interval | None = None
    fine_tuned_gain: Interval | None = None
    kept: bool = False  # whether the federated model is the best round's, by validation images


@dataclass(frozen=True)
class Compared:
    """The runs of one row by seed: each with the folder of its own run, of training alone and of fine-tuning."""

    label: str
    runs: Mapping[int, Path]
    alone: Mapping[int, Path] = field(default_factory=dict)
    fine_tuned: Mapping[int, Path] = field(default_factory=dict)


def compared(label: str, runs: Mapping[int, Path], alone: Mapping[int, Path]) -> Compared:
    """A row with what stands beside it: in its own folders, or runs alone that it shares with others."""
    inside = {seed: path / ALONE for seed, path in runs.items() if _fits(path, ALONE)}
    tuned = {seed: path / FINE_TUNED for seed, path in runs.items() if _fits(path, FINE_TUNED)}
    return Compared(label, runs, {**alone, **inside}, tuned)


def _fits(folder: Path, name: str) -> bool:
    """Whether the run beside another one is finished, and was made for what that one is now."""
    if (read_json(folder / name / "result.json") or {}).get("status") != "finished":
        return False
    own, config = read_json(folder / name / "config.json") or {}, read_json(folder / "config.json") or {}
    if name == FINE_TUNED:
        model = folder / "model.safetensors"  # which a federation may have left at its server
        return not model.is_file() or own.get("start_from_sha256") == file_hash(model)
    rounds = (read_json(folder / "result.json") or {}).get("rounds", 0)
    return bool((own.get("solo") or {}).get("epochs") == rounds * int(config.get("epochs", 0)))


def outcomes(folder: Path, test: bool = False) -> dict[str, Outcome]:
    """Of a run's model at each site: from the predictions of its held-out images, or (`test`) of the test images beside
    them; else from the counts that sites told.
    """
    path = folder / (TEST if test else "predictions.csv")
    if path.is_file() or test:
        return _predicted(path)
    lines = read_lines(folder / "sites.jsonl", SitesLine)
    told: dict[str, Any] = lines[-1]["sites"] if lines else {}
    return {
        site: Outcome((), np.array([float(sum(each["total"]))]), np.array([float(sum(each["correct"]))]))
        for site, each in told.items()
        if sum(each["total"])
    }


def _predicted(path: Path) -> dict[str, Outcome]:
    counted: dict[str, dict[str, list[int]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if not set(NEEDED) <= set(reader.fieldnames or ()):
                raise InputError(f"{path}: expected the columns {', '.join(NEEDED)}")
            for row in reader:
                if row["site"]:
                    group = row["group"] or row["path"]
                    cell = counted.setdefault(row["site"], {}).setdefault(group, [0, 0])
                    cell[0] += 1
                    cell[1] += row["class"] == row["predicted"]
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    found = {}
    for site, groups in counted.items():
        numbers = np.array(list(groups.values()), dtype=np.float64)
        found[site] = Outcome(tuple(groups), numbers[:, 0], numbers[:, 1])
    return found


def site_rows(rows: Sequence[Compared]) -> list[SiteRow]:
    """Every site with every row, sites in order, and the mean over those that train where there are several; empty
    where nothing says what sites have. Seeds that lack a run beside them are left out where others have one.
    """
    found: dict[tuple[str, str], _AtSite] = {}
    of: dict[str, str] = {}
    kept: set[str] = set()
    for row in rows:
        beside = [each for each in (row.alone, row.fine_tuned) if set(each) & set(row.runs)]
        seeds = [seed for seed in row.runs if all(seed in each for each in beside)]
        folders = [[row.runs[seed], *(each[seed] for each in beside)] for seed in seeds]
        test = bool(folders) and all((path / TEST).is_file() for each in folders for path in each)
        of[row.label] = "test" if test or not _has(folders, "val_fraction", 0) else "validation"
        kept |= {row.label} if _has(folders, "keep", "last") else set()
        models = []
        for seed in seeds:
            kinds = (row.runs[seed], row.alone.get(seed), row.fine_tuned.get(seed))
            models.append([outcomes(path, test) if path is not None else {} for path in kinds])
        sites = sorted({site for kinds in models for site in kinds[0]})
        at = [_at_site([[each.get(site) for each in kinds] for kinds in models]) for site in sites]
        found |= {(site, row.label): each for site, each in zip(sites, at, strict=True)}
        most = max((len(each.kinds) for each in at), default=0)
        training = [each for each in at if len(each.kinds) == most]
        if len(training) > 1:
            found[MEAN, row.label] = _mean(training)
    labels = [row.label for row in rows]
    ordered = sorted(found, key=lambda key: (key[0] == MEAN, key[0], labels.index(key[1])))
    return [found[key].row(*key, of[key[1]], key[1] in kept) for key in ordered]


def _has(folders: Sequence[Sequence[Path]], name: str, usual: object) -> bool:
    """Whether a setting of these runs is another than the usual one."""
    return any((read_json(each[0] / "config.json") or {}).get(name, usual) != usual for each in folders)


@dataclass(frozen=True)
class _AtSite:
    """A row's models at a site, by kind."""

    images: float
    groups: float
    seeds: int
    kinds: Mapping[str, _Drawn]
    drawn: float  # how many images or groups a draw is made of, with the seed that has fewest

    def row(self, site: str, label: str, held_out: str, kept: bool) -> SiteRow:
        found = dict(self.kinds)
        for kind, gain in (("federated", "gain"), ("fine_tuned", "fine_tuned_gain")):
            if kind in found and "alone" in found:
                found[gain] = found[kind] - found["alone"]
        shown = {name: drawn.interval(self.drawn < FEWEST) for name, drawn in found.items()}
        return SiteRow(site, label, held_out, self.images, self.groups, self.seeds, **shown, kept=kept)


def _at_site(models: Sequence[Sequence[Outcome | None]]) -> _AtSite:
    """From the outcomes of each seed: federated, alone, fine-tuned."""
    there = [each for each in models if each[0] is not None]
    first = [each[0] for each in there if each[0] is not None]
    draws = _Draws(first)
    kinds = {}
    for place, name in enumerate(("federated", "alone", "fine_tuned")):
        whole = [outcome for each in there if (outcome := each[place]) is not None]
        same = [set(one.groups) == set(other.groups) for one, other in zip(whole, first, strict=False)]
        if len(whole) == len(first) and all(same):  # of the same images
            kinds[name] = draws.of(whole)
    images = float(np.mean([one.images.sum() for one in first]))
    drawn = min(len(one.groups) or float(one.images.sum()) for one in first)
    return _AtSite(images, float(np.mean([len(one.groups) for one in first])), len(first), kinds, drawn)


def _mean(sites: Sequence[_AtSite]) -> _AtSite:
    """Over sites, each counting as much as the others; a kind that some site lacks is left out."""
    common = [name for name in sites[0].kinds if all(name in site.kinds for site in sites)]
    kinds = {
        name: _Drawn(
            float(np.mean([site.kinds[name].value for site in sites])),
            np.mean([site.kinds[name].draws for site in sites], axis=0),
        )
        for name in common
    }
    images, groups = sum(site.images for site in sites), sum(site.groups for site in sites)
    drawn = sum(site.drawn for site in sites)
    return _AtSite(images, groups, max(site.seeds for site in sites), kinds, drawn)


@dataclass(frozen=True)
class _Drawn:
    """A mean over seeds as it is, and as it is in each draw."""

    value: float
    draws: Floats

    def __sub__(self, other: _Drawn) -> _Drawn:
        return _Drawn(self.value - other.value, self.draws - other.draws)

    def interval(self, few: bool) -> Interval:
        low, high = (math.nan, math.nan) if few else np.percentile(self.draws, [LOW, HIGH])
        return Interval(self.value, float(low), float(high))


class _Draws:
    """How often each group is in each draw: one choice for all models and seeds of a site."""

    def __init__(self, runs: Sequence[Outcome]) -> None:
        self._names = sorted({group for run in runs for group in run.groups})
        said = "\0".join(self._names) or repr([(run.images.tolist(), run.correct.tolist()) for run in runs])
        self._random = np.random.default_rng(zlib.crc32(said.encode()))  # sites are drawn apart from each other
        self._place = {name: place for place, name in enumerate(self._names)}
        self._times = self._drawn(len(self._names)) if self._names else None

    def _drawn(self, count: int) -> npt.NDArray[np.uint16]:
        """(draws, groups), some draws at a time, since there may be many images."""
        times = np.empty((DRAWS, count), dtype=np.uint16)
        for start in range(0, DRAWS, AT_ONCE):
            times[start : start + AT_ONCE] = self._random.multinomial(count, np.full(count, 1 / count), AT_ONCE)
        return times

    def of(self, runs: Sequence[Outcome]) -> _Drawn:
        each = [self._accuracy(run) for run in runs]
        return _Drawn(float(np.mean([run.accuracy for run in runs])), np.mean(each, axis=0))

    def _accuracy(self, run: Outcome) -> Floats:
        if self._times is None or not set(run.groups) <= set(self._names) or not run.groups:
            total = int(run.images.sum())
            drawn: Floats = self._random.binomial(total, run.accuracy, DRAWS) / total
            return drawn
        places = [self._place[group] for group in run.groups]
        parts = []
        for start in range(0, DRAWS, AT_ONCE):
            times = self._times[start : start + AT_ONCE, places].astype(np.float64)
            images = times @ run.images
            parts.append(np.where(images > 0, times @ run.correct / np.maximum(images, 1), run.accuracy))
        return np.concatenate(parts)
