from __future__ import annotations

import math

import pytest
import torch

from fedproc import streams
from fedproc.data.augment import ANGLES, AUGMENTATIONS, Augmentation, Normalisation


def naive(image: torch.Tensor, pad: str, row: int, column: int, flip: int, angle: int | None) -> torch.Tensor:
    """Pad, crop, flip, rotate, one pixel at a time."""
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 8, width + 8, dtype=image.dtype)
    for y in range(height + 8):
        for x in range(width + 8):
            sy, sx = y - 4, x - 4
            if pad == "reflect":
                sy = -sy if sy < 0 else 2 * (height - 1) - sy if sy >= height else sy
                sx = -sx if sx < 0 else 2 * (width - 1) - sx if sx >= width else sx
            if 0 <= sy < height and 0 <= sx < width:
                padded[:, y, x] = image[:, sy, sx]
    cropped = padded[:, row : row + height, column : column + width]
    if flip:
        cropped = cropped.flip(-1)
    if angle is None:
        return cropped
    degrees = -15 + 30 * angle / (ANGLES - 1)
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turned = torch.zeros_like(cropped)
    for y in range(height):
        for x in range(width):
            dy, dx = y - (height - 1) / 2, x - (width - 1) / 2
            sy = math.floor(c * dy - s * dx + (height - 1) / 2 + 0.5)
            sx = math.floor(s * dy + c * dx + (width - 1) / 2 + 0.5)
            if 0 <= sy < height and 0 <= sx < width:
                turned[:, y, x] = cropped[:, sy, sx]
    return turned


@pytest.mark.parametrize("name", ["crop-flip", "crop-flip-rotate"])
def test_moves_agree_with_a_naive_implementation(name: str) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (12, 3, 10, 10), dtype=torch.uint8)
    augmentation = AUGMENTATIONS[name]
    drawn = augmentation.draw(lambda p: streams.key(1, p, 0, 0), torch.tensor([0]), torch.arange(12).view(1, 12))
    draws = {name: values[0] for name, values in drawn.items()}
    moved = augmentation.apply(images, draws)
    for i in range(12):
        angle = int(draws["angle"][i]) if augmentation.rotate else None
        expected = naive(
            images[i],
            augmentation.pad or "",
            int(draws["row"][i]),
            int(draws["column"][i]),
            int(draws["flip"][i]),
            angle,
        )
        assert torch.equal(moved[i], expected)


def test_no_move_is_the_identity() -> None:
    images = torch.arange(2 * 16, dtype=torch.uint8).view(2, 1, 4, 4)
    still = {"row": torch.tensor([4, 4]), "column": torch.tensor([4, 4]), "flip": torch.tensor([0, 0])}
    still["angle"] = torch.tensor([ANGLES // 2] * 2)  # 0 degrees
    assert torch.equal(AUGMENTATIONS["crop-flip-rotate"].apply(images, still), images)
    assert AUGMENTATIONS["none"].draw(int, torch.tensor([0]), torch.arange(2).view(1, 2)) == {}


def test_draws_cover_the_range_and_change_with_the_epoch() -> None:
    augmentation = Augmentation(pad="reflect", flip=True, rotate=True)
    drawn = augmentation.draw(lambda p: streams.key(0, p, 0, 0), torch.arange(2), torch.arange(5000).expand(2, -1))
    first, second = ({name: values[epoch] for name, values in drawn.items()} for epoch in (0, 1))
    assert sorted(set(first["row"].tolist())) == list(range(9))
    assert sorted(set(first["flip"].tolist())) == [0, 1]
    assert first["angle"].min() >= 0 and first["angle"].max() <= ANGLES - 1
    assert not torch.equal(first["row"], first["column"])
    assert not torch.equal(first["row"], second["row"])


def test_normalisation_by_hand() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1, 1)
    values = Normalisation((0.5,), (0.25,)).apply(images, torch.float64)
    # (0 - 0.5)/0.25, (1 - 0.5)/0.25, (0.2 - 0.5)/0.25
    assert values.flatten().tolist() == pytest.approx([-2.0, 2.0, -1.2])
