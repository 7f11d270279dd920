"""A user's own images, wherever they are listed: a folder, or a CSV file."""

from __future__ import annotations

from pathlib import Path

from fedproc.data import folder, manifest
from fedproc.data.gather import Files, gather
from fedproc.data.images import Images
from fedproc.data.pictures import Fit
from fedproc.data.problems import Complain, Problem, refuse

ONE_CLASS = "one class only"


def is_manifest(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv")


def find(path: Path, test_fraction: float, data_seed: int, lonely: bool = False, complain: Complain = refuse) -> Files:
    """The image files, in training and test images; `lonely`: one class is enough, and one image of it."""
    if is_manifest(path):
        found = manifest.find(path, test_fraction, data_seed, complain)
    else:
        found = folder.find(path, test_fraction, data_seed, lonely, complain)
    if not lonely and len(found.class_names) == 1:
        text = f"{path}: all images are of one class ({found.class_names[0]}); expected two at least"
        tables = [] if is_manifest(path) else [each for each in sorted(path.iterdir()) if is_manifest(each)]
        hint = f"; if {tables[0].name} lists the images, give --data {tables[0]}" if tables else ""
        complain(Problem(ONE_CLASS, text + hint, (str(path),)))
    return found


def read(
    path: Path,
    image_size: int | None,
    test_fraction: float,
    data_seed: int,
    fit: Fit = "pad",
    skip_unreadable: bool = False,
) -> Images:
    """Images of any size and common format, made squares of `image_size`."""
    return gather(find(path, test_fraction, data_seed), image_size, fit, skip_unreadable)
