"""predictions.csv: what a finished run's model says of each held-out image, one line an image."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedproc.cells import safe_cell
from fedproc.data import Images
from fedproc.data.names import readable
from fedproc.lanes.evaluate import CHUNK, HeldOut
from fedproc.lanes.serial import SerialNet
from fedproc.lanes.setting import Setting
from fedproc.protocol.weights import Weights

HEADS = ("path", "site", "group", "class", "predicted", "probability")
Models = Mapping[int | None, Weights]  # by client; None: everybody's


def write_predictions(path: Path, setting: Setting, images: Images, held_out: HeldOut, models: Models) -> None:
    """One line for each held-out image that some model is for: the global one, or its owner's."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADS)
        writer.writerows([safe_cell(cell) for cell in row] for row in _rows(setting, images, held_out, models))


def _rows(setting: Setting, images: Images, held_out: HeldOut, models: Models) -> Iterator[list[str]]:
    index, owner = held_out.index.cpu().numpy(), held_out.owner.cpu().numpy()
    net = SerialNet(setting)
    predicted, probability = np.full(len(index), -1), np.zeros(len(index))
    for client, weights in models.items():
        chosen = np.arange(len(index)) if client is None else np.flatnonzero(owner == client)
        if len(chosen):
            which = torch.from_numpy(chosen).to(held_out.index.device)
            net.load(weights)
            found = _classified(net, setting, held_out, which)
            predicted[chosen], probability[chosen] = found[1].cpu().numpy(), found[0].cpu().numpy()
    part, split = ("test", images.test) if held_out.whole else ("train", images.train)
    for place, image in enumerate(index.tolist()):
        if predicted[place] >= 0:
            yield [
                readable(split.names[image]) if split.names is not None else f"{part}/{image}",
                images.site_names[split.sites[image]] if split.sites is not None else "",
                images.group_names[split.groups[image]] if split.groups is not None else "",
                images.class_names[split.labels[image]],
                images.class_names[predicted[place]],
                f"{probability[place]:.6f}",
            ]


@torch.no_grad()
def _classified(net: SerialNet, setting: Setting, held_out: HeldOut, which: Tensor) -> tuple[Tensor, Tensor]:
    """The probability of the likeliest class of some of the images, and the class."""
    net.train(False)
    found = []
    for start in range(0, len(which), CHUNK):
        part = which[start : start + CHUNK]
        pixels = held_out.images.index_select(0, held_out.index[part])
        _, logits = net.forward(setting.normalisation.apply(pixels, setting.spec.dtype), None)
        found.append(logits.to(torch.float64).softmax(dim=-1).max(dim=-1))
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])
