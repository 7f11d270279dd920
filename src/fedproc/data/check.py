"""All that is wrong with a person's images at once: what would stop training, and what should be looked at."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedproc.data import own
from fedproc.data.gather import Files, Item
from fedproc.data.names import alike
from fedproc.data.pictures import SIXTEEN, Picture, concurrently, tried
from fedproc.data.problems import Problem
from fedproc.errors import InputError, with_flags

SHOWN = 3
Counts = Counter[tuple[str, str, str]]
Progress = Callable[[int, int], None]
Seen = tuple[Item, str, str, str]  # an image that could be read, its part, the hashes of its bytes and of its pixels


@dataclass(frozen=True)
class Check:
    """What was found, and how many images there are of each (class, site, part)."""

    problems: list[Problem]
    counts: Counts

    @property
    def stops(self) -> bool:
        return any(problem.stops for problem in self.problems)


def check(
    path: Path, test_fraction: float, data_seed: int, skip_unreadable: bool = False,
    progress: Progress = lambda done, total: None,
) -> Check:  # fmt: skip
    """Read every file of a folder or a CSV file, as training would."""
    problems: list[Problem] = []
    files = own.find(path, test_fraction, data_seed, complain=problems.append)
    problems = [replace(each, stops=each.kind != own.ONE_CLASS and each.stops) for each in problems]  # a site's may be
    listed = [(item, part) for part, items in (("train", files.train), ("test", files.test)) for item in items]
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, len(listed))

    hashes = concurrently(lambda each: tried(lambda: _hashes(each[0].picture)), listed, advance)
    seen: list[Seen] = []
    for (item, part), found in zip(listed, hashes, strict=True):
        if isinstance(found, InputError):
            problems.append(Problem("unreadable", with_flags(found), (item.picture.name,), stops=not skip_unreadable))
        else:
            seen.append((item, part, *found))
    problems += _empty(files, seen)
    problems += [replace(each, stops=False) for each in (*_sites(files), *_groups(files), *_duplicates(seen))]
    counts = Counter((item.label, item.site or "", part) for item, part, *_ in seen)
    return Check(sorted(problems, key=lambda problem: (not problem.stops, problem.kind)), counts)


def _hashes(picture: Picture) -> tuple[str, str]:
    """Of the bytes, and of the upright pixels, whichever format they were saved in."""
    image = picture.upright()
    plain = image if image.mode in SIXTEEN else image.convert("RGB")
    pixels = hashlib.sha256(f"{plain.mode} {plain.size}".encode() + plain.tobytes()).hexdigest()
    return hashlib.sha256(picture.raw()).hexdigest(), pixels


def _empty(files: Files, seen: Sequence[Seen]) -> list[Problem]:
    """Parts and classes of which nothing is left."""
    there = {(part, item.label) for item, part, *_ in seen}
    problems = [
        Problem(f"no {part} images", f"{files.name}: no {part} images, expected at least one")
        for part in ("train", "test")
        if not any(each[0] == part for each in there)
    ]
    for label in sorted({item.label for item in (*files.train, *files.test)}):
        if ("train", label) not in there and any(item.label == label for item in files.train):
            text = f"class {label}: none of its training images can be read, so nothing can learn it"
            problems.append(Problem("a class without training images", text, stops=False))
        if ("test", label) not in there:
            text = f"class {label}: no test image, so nothing is known of how well it is told from others"
            problems.append(Problem("a class without test images", text, stops=False))
    return problems


def _sites(files: Files) -> list[Problem]:
    train, test = ({item.site for item in part if item.site is not None} for part in (files.train, files.test))
    found = [
        (f"sites {one!r} and {other!r} differ in case or spaces alone", "alike") for one, other in alike(train | test)
    ]
    if test:  # else the test images are nobody's
        found += [(f"site {site}: no test images of its own", "without test images") for site in sorted(train - test)]
    found += [
        (f"site {site}: no training images, so it is only tested on", "only tests") for site in sorted(test - train)
    ]
    return [Problem(f"site: {kind}", text) for text, kind in found]


def _groups(files: Files) -> list[Problem]:
    problems = []
    held: dict[str, set[str]] = {}
    for item in (*files.train, *files.test):
        if item.group is not None and item.site is not None:
            held.setdefault(item.group, set()).add(item.site)
    for group, sites in sorted(held.items()):
        if len(sites) > 1:
            text = f"group {group} is in sites {', '.join(sorted(sites))}: one may be tested on what another learnt"
            problems.append(Problem("a group in two sites", text))
    return problems


def _duplicates(seen: Sequence[Seen]) -> list[Problem]:
    """One for each picture that is there more than once; what is worst about it first."""
    by_pixels: dict[str, list[Seen]] = {}
    for each in seen:
        by_pixels.setdefault(each[3], []).append(each)
    problems = []
    for same in by_pixels.values():
        if len(same) < 2:
            continue
        items, parts, contents, _ = zip(*same, strict=True)
        labels, sites = sorted({item.label for item in items}), sorted({item.site or "" for item in items})
        kind = "duplicate"
        about = ["the same bytes" if len({*contents}) == 1 else "the same pixels"]
        if len(sites) > 1:
            kind = "duplicate in two sites"
            about.append(f"in sites {' and '.join(sites)}")
        if len({*parts}) > 1:
            kind = "duplicate in train and test"
            about.append("in train and in test")
        if len(labels) > 1:
            kind = "duplicate with different labels"
            about.append(f"labelled {' and '.join(labels)}")
        paths = [item.picture.name for item in items]
        more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
        problems.append(Problem(kind, f"{', '.join(paths[:SHOWN])}{more}: {', '.join(about)}", paths))
    return problems
