"""The paper's t-SNE figure, and a number for its claim that FedProc's clients match the global distribution.

z of the same test images under five models: clients 1 and 2 trained alone (SOLO), FedAvg's averaged model, and clients
1 and 2 as FedProc's last round left them, before the merge. One embedding holds all five, so that positions compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedproc.data import Images
from fedproc.figures.style import Picture, picture, plain
from fedproc.runs.folder import client_model
from fedproc.runs.model import load_model

Array = npt.NDArray[Any]
EACH = 100  # test images per class
CLIENTS = (0, 1)
PANELS = ("SOLO, client 1", "SOLO, client 2", "FedAvg, global", "FedProc, client 1", "FedProc, client 2")


@dataclass(frozen=True)
class Embedded:
    """Positions (5, N, 2) of the images under each model, their labels (N,), positions (K, 2) of FedProc's prototypes,
    and how similar the models of each method are: linear centred kernel alignment (CKA), 1 where they agree.
    """

    places: Array
    labels: Array
    prototypes: Array
    class_names: tuple[str, ...]
    alignment: dict[str, dict[str, float]]


def needed(method: str) -> list[str]:
    """The model files that a run of a method must have for this figure."""
    own = [client_model(client) for client in CLIENTS]
    return own if method == "solo" else ["model.safetensors", *own]


def chosen(images: Images, each: int = EACH) -> Array:
    """The first `each` test images of every class."""
    labels = images.test.labels
    return np.concatenate([np.flatnonzero(labels == k)[:each] for k in range(images.classes)])


def embed(folders: Mapping[str, Path], images: Images, each: int = EACH, seed: int = 0) -> Embedded:
    """Embed the test images under the models of the runs of `solo`, `fedavg` and `fedproc` in these folders."""
    from sklearn.manifold import TSNE

    index = chosen(images, each)
    pixels = torch.from_numpy(images.test.images[index])

    def z_of(method: str, name: str) -> Array:
        model = load_model(folders[method], name)
        with torch.no_grad():
            return np.concatenate([model(part)[1].numpy() for part in torch.split(pixels, 500)])

    z = {(m, name): z_of(m, name) for m in ("solo", "fedavg", "fedproc") for name in needed(m)}
    one, two = (client_model(client) for client in CLIENTS)
    views = [z["solo", one], z["solo", two], z["fedavg", "model.safetensors"], z["fedproc", one], z["fedproc", two]]
    model = load_model(folders["fedproc"])
    prototypes = model.get_buffer("prototypes").numpy()
    together = _unit(np.concatenate([*views, prototypes]).astype(np.float64))
    perplexity = min(30.0, (len(together) - 1) / 3)
    flat = TSNE(init="pca", random_state=seed, perplexity=perplexity).fit_transform(together)
    places = flat[: len(views) * len(index)].reshape(len(views), len(index), 2)
    whole = z["fedavg", "model.safetensors"]
    alignment = {}
    for method in ("solo", "fedavg", "fedproc"):
        shared = whole if method == "solo" else z[method, "model.safetensors"]
        own = (z[method, one], z[method, two])
        alignment[method] = {
            "client 1 with client 2": alignment_of(*own),
            "clients with the global model": (alignment_of(own[0], shared) + alignment_of(own[1], shared)) / 2,
        }
    return Embedded(places, images.test.labels[index], flat[len(views) * len(index) :], images.class_names, alignment)


def _unit(vectors: Array) -> Array:
    """Of length 1, since prototypes and samples are compared by their angle."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Array = vectors / np.where(length > 0, length, 1.0)
    return unit


def alignment_of(one: Array, other: Array) -> float:
    """Linear centred kernel alignment (Kornblith et al. 2019) of two sets of vectors for the same images."""
    a, b = (each.astype(np.float64) - each.mean(axis=0, dtype=np.float64) for each in (one, other))
    scale = np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)
    return float(np.linalg.norm(a.T @ b) ** 2 / scale) if scale > 0 else 0.0


def draw(embedded: Embedded) -> Picture:
    """Five panels in a row, classes in colour, FedProc's prototypes as stars, CKA below."""
    from matplotlib import colormaps
    from matplotlib.lines import Line2D

    made = picture(15, 3.9)
    axes = made.figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    shades = colormaps["tab10" if len(embedded.class_names) <= 10 else "gist_ncar"]
    classes = len(embedded.class_names)
    colours = [shades(k if classes <= 10 else k / classes) for k in range(classes)]
    for panel, title, places in zip(axes, PANELS, embedded.places, strict=True):
        for k in range(classes):
            mine, name = places[embedded.labels == k], embedded.class_names[k]
            gid = f"images-{len(made.texts)}"
            panel.scatter(*mine.T, s=4, color=colours[k], alpha=0.7, linewidths=0, label=plain(name), gid=gid)
            made.texts[gid] = [name] * len(mine)
        if title.startswith("FedProc"):
            gid = f"prototypes-{len(made.texts)}"
            stars = {"marker": "*", "edgecolors": "black", "linewidths": 0.7, "gid": gid}
            panel.scatter(*embedded.prototypes.T, s=90, c=colours, **stars)
            made.texts[gid] = [f"prototype of {name}" for name in embedded.class_names]
        panel.set_title(title, fontsize=11)
        panel.set_xticks([])
        panel.set_yticks([])
    words = ", ".join(
        f"{method} {numbers['client 1 with client 2']:.2f} / {numbers['clients with the global model']:.2f}"
        for method, numbers in embedded.alignment.items()
    )
    made.figure.supxlabel(
        f"similarity of z (CKA), client 1 with 2 / clients with the global model: {words}", fontsize=10
    )
    if classes <= 20:
        handles, labels = axes[0].get_legend_handles_labels()
        star = Line2D([], [], marker="*", markersize=4, markeredgewidth=0.2, color="white", markeredgecolor="black")
        handles, labels = [*handles, star], [*labels, "FedProc's prototype"]
        made.figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8, markerscale=3)
    return made
