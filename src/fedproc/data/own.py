"""A user's own images, wherever they are listed: a folder, or a CSV file."""

from __future__ import annotations

from pathlib import Path

from fedproc.data import folder, manifest
from fedproc.data.gather import Files, gather
from fedproc.data.images import Images
from fedproc.data.pictures import Fit
from fedproc.data.problems import Complain, refuse


def is_manifest(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv")


def find(path: Path, test_fraction: float, data_seed: int, lonely: bool = False, complain: Complain = refuse) -> Files:
    """The image files, in training and test images; `lonely`: a class of one image is trained on and not tested."""
    if is_manifest(path):
        return manifest.find(path, test_fraction, data_seed, complain)
    return folder.find(path, test_fraction, data_seed, lonely, complain)


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
