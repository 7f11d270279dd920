from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from fedproc import streams
from fedproc.data.augment import (
    ANGLES,
    AUGMENTATIONS,
    COLOURS,
    FACTORS,
    LEAST,
    Augmentation,
    Normalisation,
    augmentation,
)


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
    moves = AUGMENTATIONS[name]
    drawn = moves.draw(lambda p: streams.key(1, p, 0, 0), torch.tensor([0]), torch.arange(12).view(1, 12))
    draws = {name: values[0] for name, values in drawn.items()}
    moved = moves.apply(images, draws)
    for i in range(12):
        angle = int(draws["angle"][i]) if moves.rotate else None
        expected = naive(
            images[i],
            moves.pad or "",
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


@pytest.mark.parametrize(
    ("name", "transpose"),
    [("flip", Image.Transpose.FLIP_LEFT_RIGHT), ("flip-vertical", Image.Transpose.FLIP_TOP_BOTTOM)],
)
def test_flips_are_pillows(name: str, transpose: Image.Transpose) -> None:
    pixels = torch.randint(0, 256, (1, 3, 9, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture = Image.fromarray(pixels[0].permute(1, 2, 0).numpy())
    (drawn,) = AUGMENTATIONS[name].draw_nothing(torch.device("cpu"))
    for mirrored in (0, 1):
        found = AUGMENTATIONS[name].apply(pixels, {drawn: torch.tensor([mirrored])})[0].permute(1, 2, 0)
        expected = picture.transpose(transpose) if mirrored else picture
        assert np.array_equal(found.numpy(), np.asarray(expected))


def coloured(values: list[int], brightness: int, contrast: int, saturation: int) -> list[int]:
    """One pixel, in plain arithmetic; factors in hundredths."""

    def byte(hundredths: int) -> int:
        return min(max(hundredths + 50, 0) // 100, 255)

    values = [byte(value * brightness) for value in values]
    values = [byte(12800 + (value - 128) * contrast) for value in values]
    if len(values) == 3:
        grey = (77 * values[0] + 150 * values[1] + 29 * values[2] + 128) // 256
        values = [byte(100 * grey + (value - grey) * saturation) for value in values]
    return values


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_by_plain_arithmetic(channels: int) -> None:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (200, channels, 1, 2), dtype=torch.uint8, generator=generator)
    images[0], images[1] = 0, 255
    draws = {name: torch.randint(0, FACTORS, (200,), generator=generator) for name in COLOURS}
    found = AUGMENTATIONS["colour"].apply(images, draws)
    for i in range(200):
        factors = [LEAST + int(draws[name][i]) for name in COLOURS]
        for x in (0, 1):
            assert found[i, :, 0, x].tolist() == coloured(images[i, :, 0, x].tolist(), *factors)
    same = {name: torch.full((200,), 100 - LEAST) for name in COLOURS}
    assert torch.equal(AUGMENTATIONS["colour"].apply(images, same), images)


def test_brightness_and_saturation_are_pillows_within_rounding() -> None:
    """Pillow cuts off where we round, and its grey has other digits: one step of brightness, two of saturation."""
    pixels = torch.randint(0, 256, (1, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    picture = Image.fromarray(pixels[0].permute(1, 2, 0).numpy())
    plain = {name: torch.tensor([100 - LEAST]) for name in COLOURS}
    for name, enhance, apart in (("brightness", ImageEnhance.Brightness, 1), ("saturation", ImageEnhance.Color, 2)):
        for step in (0, 7, 33, 40):
            found = AUGMENTATIONS["colour"].apply(pixels, {**plain, name: torch.tensor([step])})[0].permute(1, 2, 0)
            expected = np.asarray(enhance(picture).enhance((LEAST + step) / 100)).astype(int)
            assert np.abs(found.numpy().astype(int) - expected).max() <= apart


def test_colours_leave_what_lies_beyond_the_edge_black() -> None:
    images = torch.full((1, 1, 8, 8), 200, dtype=torch.uint8)
    draws = {"angle": torch.tensor([0]), **{name: torch.tensor([0]) for name in COLOURS}}
    turned = augmentation("rotate,colour").apply(images, draws)
    assert turned[0, 0, 0, 0] == 0 and turned[0, 0, 4, 4] == coloured([200], LEAST, LEAST, LEAST)[0]


def test_names_are_joined() -> None:
    assert augmentation("crop,flip") == AUGMENTATIONS["crop-flip"]
    assert augmentation("rotate,crop-flip") == Augmentation(pad="reflect", flip=True, rotate=True)
    assert augmentation("crop-flip-rotate,crop").pad == "zero"


def test_draws_cover_the_range_and_change_with_the_epoch() -> None:
    moves = Augmentation(pad="reflect", flip=True, rotate=True, flip_vertical=True, colour=True)
    drawn = moves.draw(lambda p: streams.key(0, p, 0, 0), torch.arange(2), torch.arange(5000).expand(2, -1))
    first, second = ({name: values[epoch] for name, values in drawn.items()} for epoch in (0, 1))
    assert sorted(set(first["row"].tolist())) == list(range(9))
    assert sorted(set(first["flip"].tolist())) == [0, 1]
    assert first["angle"].min() >= 0 and first["angle"].max() <= ANGLES - 1
    assert not torch.equal(first["row"], first["column"])
    assert not torch.equal(first["row"], second["row"])
    assert not torch.equal(first["flip"], first["flip_vertical"])
    for name in COLOURS:
        assert sorted(set(first[name].tolist())) == list(range(FACTORS))
    assert not torch.equal(first["brightness"], first["contrast"])


def test_normalisation_by_hand() -> None:
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(3, 1, 1, 1)
    values = Normalisation((0.5,), (0.25,)).apply(images, torch.float64)
    # (0 - 0.5)/0.25, (1 - 0.5)/0.25, (0.2 - 0.5)/0.25
    assert values.flatten().tolist() == pytest.approx([-2.0, 2.0, -1.2])
