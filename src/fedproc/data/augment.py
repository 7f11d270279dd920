"""From an image's bytes to the network's input: crop, flips, rotation, colours, normalisation.

All moves are one map of pixel positions, and colours are changed byte by byte, in integer arithmetic: CPU and GPU give
the same bytes.
Shapes: N images (lanes and batch flattened), C channels, H x W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fedproc import streams
from fedproc.streams import Purpose

PAD = 4
MOST_DEGREES = 15
ANGLES = 3001  # hundredths of a degree from -15 to 15
ONE = 1 << 16  # fixed point of sine and cosine
LEAST, FACTORS = 80, 41  # brightness, contrast and saturation are multiplied by 80 to 120 hundredths
MIDDLE = 128  # the grey that contrast leaves as it is

Draws = dict[str, Tensor]


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image; `pad` None means no crop."""

    pad: Literal["reflect", "zero"] | None = None
    flip: bool = False
    rotate: bool = False
    flip_vertical: bool = False
    colour: bool = False

    def __or__(self, other: Augmentation) -> Augmentation:
        """The changes of both; where one crops with zeros beyond the edge, both do."""
        pads = {self.pad, other.pad} - {None}
        pad: Literal["reflect", "zero"] | None = "zero" if "zero" in pads else "reflect" if pads else None
        flags = (getattr(self, name) or getattr(other, name) for name in ("flip", "rotate", "flip_vertical", "colour"))
        return Augmentation(pad, *flags)

    def draw(self, key: Callable[[Purpose], int], epochs: Tensor, positions: Tensor) -> Draws:
        """The changes (S, B) of each sample, from its epoch (S,) and position (S, B) in the client's list."""

        def integers(purpose: Purpose, below: int) -> Tensor:
            return streams.draws(key(purpose), epochs, positions, below)

        draws: Draws = {}
        if self.pad is not None:
            draws["row"] = integers(Purpose.CROP_ROW, 2 * PAD + 1)
            draws["column"] = integers(Purpose.CROP_COLUMN, 2 * PAD + 1)
        if self.flip:
            draws["flip"] = integers(Purpose.FLIP, 2)
        if self.rotate:
            draws["angle"] = integers(Purpose.ROTATION, ANGLES)
        if self.flip_vertical:
            draws["flip_vertical"] = integers(Purpose.FLIP_VERTICAL, 2)
        if self.colour:
            for name, purpose in COLOURS.items():
                draws[name] = integers(purpose, FACTORS)
        return draws

    def draw_nothing(self, device: torch.device) -> Draws:
        """The names of the draws, with no sample in them."""
        none = torch.zeros(0, dtype=torch.int64, device="cpu")
        return {name: drawn.to(device) for name, drawn in self.draw(lambda purpose: 0, none, none).items()}

    def turns(self, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines of all angles, in fixed point."""
        return _turns(device) if self.rotate else None

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """The changed images (N, C, H, W) for draws (N,)."""
        if not draws:
            return images
        count, channels, height, width = images.shape
        rows = torch.arange(height, device=images.device).view(1, height, 1)
        columns = torch.arange(width, device=images.device).view(1, 1, width)
        inside: Tensor | None = None
        if "angle" in draws:
            rows, columns = _rotated(rows, columns, height, width, draws["angle"].long())
            inside = _within(rows, height) & _within(columns, width)
        if "flip" in draws:
            mirrored = draws["flip"].view(-1, 1, 1).bool()
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if "flip_vertical" in draws:
            rows = torch.where(draws["flip_vertical"].view(-1, 1, 1).bool(), height - 1 - rows, rows)
        if "row" in draws:
            rows = rows + draws["row"].long().view(-1, 1, 1) - PAD
            columns = columns + draws["column"].long().view(-1, 1, 1) - PAD
        if self.pad == "reflect":
            rows, columns = _reflected(rows, height), _reflected(columns, width)
        elif self.pad == "zero":
            within = _within(rows, height) & _within(columns, width)
            inside = within if inside is None else inside & within
        place = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
        place = place.expand(count, height, width).reshape(count, 1, -1).expand(count, channels, -1)
        moved = images.reshape(count, channels, -1).gather(2, place).view_as(images)
        if "brightness" in draws:
            moved = _coloured(moved, draws)
        return moved if inside is None else moved * inside.expand(count, height, width).unsqueeze(1)


def _within(place: Tensor, size: int) -> Tensor:
    return (place >= 0) & (place < size)


def _reflected(place: Tensor, size: int) -> Tensor:
    place = place.abs()
    return torch.where(place >= size, 2 * (size - 1) - place, place)


def _coloured(images: Tensor, draws: Draws) -> Tensor:
    """Bytes multiplied by the brightness, spread about the middle by the contrast, and in images of three channels
    about their grey by the saturation; rounded, and kept within 0 to 255, each time.
    """
    brightness, contrast, saturation = (LEAST + draws[name].int().view(-1, 1, 1, 1) for name in COLOURS)
    values = (images.int() * brightness + 50).div(100, rounding_mode="floor").clamp(max=255)
    values = _spread(values, MIDDLE, contrast)
    if images.shape[1] == 3:
        grey = (77 * values[:, :1] + 150 * values[:, 1:2] + 29 * values[:, 2:] + 128) >> 8
        values = _spread(values, grey, saturation)
    return values.to(images.dtype)


def _spread(values: Tensor, about: Tensor | int, factor: Tensor) -> Tensor:
    """About a grey, by a factor in hundredths."""
    hundredths = (100 * about + (values - about) * factor + 50).clamp(min=0)
    return hundredths.div(100, rounding_mode="floor").clamp(max=255)


@lru_cache(maxsize=8)
def _turns(device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every angle, in fixed point."""
    radians = [math.radians(MOST_DEGREES * (2 * step / (ANGLES - 1) - 1)) for step in range(ANGLES)]
    cosines = torch.tensor([round(ONE * math.cos(r)) for r in radians], device=device)
    return cosines, torch.tensor([round(ONE * math.sin(r)) for r in radians], device=device)


def _rotated(rows: Tensor, columns: Tensor, height: int, width: int, angle: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest source pixel of each pixel of an image turned about its centre, in units of half pixels."""
    cosines, sines = _turns(angle.device)
    cosine = cosines.index_select(0, angle).view(-1, 1, 1)
    sine = sines.index_select(0, angle).view(-1, 1, 1)
    down, right = 2 * rows - (height - 1), 2 * columns - (width - 1)
    half = ONE  # rounds a half pixel up after the shift by 17 bits
    source_down = (cosine * down - sine * right + ONE * (height - 1) + half) >> 17
    source_right = (sine * down + cosine * right + ONE * (width - 1) + half) >> 17
    return source_down, source_right


COLOURS = {"brightness": Purpose.BRIGHTNESS, "contrast": Purpose.CONTRAST, "saturation": Purpose.SATURATION}
AUGMENTATIONS: dict[str, Augmentation] = {
    "none": Augmentation(),
    "crop-flip": Augmentation(pad="reflect", flip=True),
    "crop-flip-rotate": Augmentation(pad="zero", flip=True, rotate=True),
    "crop": Augmentation(pad="reflect"),
    "flip": Augmentation(flip=True),
    "flip-vertical": Augmentation(flip_vertical=True),
    "rotate": Augmentation(rotate=True),
    "colour": Augmentation(colour=True),
}


def augmentation(names: str) -> Augmentation:
    """One by name, or several whose names are joined by commas."""
    found = Augmentation()
    for name in names.split(","):
        found |= AUGMENTATIONS[name]
    return found


@dataclass(frozen=True)
class Normalisation:
    """Mean and deviation per channel, of pixels scaled to 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def apply(self, images: Tensor, dtype: torch.dtype) -> Tensor:
        """(N, C, H, W) bytes to what the network sees."""
        middle, scale = self.levels(dtype, images.device)
        return (images.to(dtype) - middle) * scale

    def levels(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """What is subtracted from bytes, and the factor that follows."""
        return _levels(self.mean, self.std, dtype, device)


@lru_cache(maxsize=64)
def _levels(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Made once, since copies to a device break a captured step."""
    middle = 255.0 * torch.tensor(mean, dtype=dtype, device=device).view(-1, 1, 1)
    return middle, torch.tensor([1.0 / (255.0 * s) for s in std], dtype=dtype, device=device).view(-1, 1, 1)
