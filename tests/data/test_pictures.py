"""How images that are no squares become squares."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from PIL import Image

from fedproc import Experiment, InputError
from fedproc.data.pictures import Fit, Picture


@pytest.fixture
def wide(tmp_path: Path) -> Picture:
    """128 x 48, grey, with white at the left edge."""
    pixels = np.full((48, 128), 100, np.uint8)
    pixels[:, :16] = 255
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    return Picture.at(tmp_path / "wide.png")


def test_a_mark_at_the_edge_stays_unless_it_is_cropped(wide: Picture) -> None:
    made = {fit: wide.decode(32, 1, fit)[0] for fit in get_args(Fit)}
    assert made["crop"].max() == 100
    assert (made["stretch"][:, :3] == 255).all() and (made["stretch"][:, 6:] == 100).all()
    whole = made["pad"]
    assert (whole[:10] == 0).all() and (whole[22:] == 0).all()  # 12 rows of 32, in the middle
    assert (whole[10:22, :3] == 255).all() and (whole[10:22, 6:] == 100).all()


def test_pad_of_a_tall_and_of_a_tiny_image(tmp_path: Path) -> None:
    Image.new("RGB", (1, 300), (9, 9, 9)).save(tmp_path / "tall.png")
    made = Picture.at(tmp_path / "tall.png").decode(16, 3, "pad")
    assert made.shape == (3, 16, 16) and made.any(axis=(0, 1)).sum() == 1


def test_squares_are_the_same_whatever_the_fit(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "square.png")
    first, *others = (Picture.at(tmp_path / "square.png").decode(32, 3, fit) for fit in get_args(Fit))
    assert all(np.array_equal(first, other) for other in others)


def test_the_fit_follows_the_data() -> None:
    assert Experiment(data="some/folder").fit == "pad" and Experiment(data="tiny-imagenet").fit == "crop"
    assert Experiment(data="some/folder", fit="stretch").fit == "stretch"
    with pytest.raises(InputError, match="fit pad: only for your own images; cifar10 is read as it is"):
        Experiment(data="cifar10", fit="pad")
    with pytest.raises(InputError, match="skip_unreadable true: only for your own images"):
        Experiment(skip_unreadable=True)
