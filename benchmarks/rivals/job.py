"""What every rival is given and hands back: the job's folder, the network written out plainly, the test.

Needs numpy and torch alone, since each rival has an environment of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Job:
    """`users` are indices into the training images, `cohorts` the users of each round."""

    method: str
    classes: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    augment: str
    mean: list[float]
    std: list[float]
    users: list[list[int]]
    cohorts: list[list[int]]
    alphas: list[float]
    device: str = "cpu"
    folder: str = ""

    @classmethod
    def read(cls, folder: str) -> Job:
        return cls(**json.loads(Path(folder, "job.json").read_text()), folder=folder)

    def array(self, name: str) -> Array:
        """images (N, C, H, W) uint8, labels (N,), test_images or test_labels; mapped, not read."""
        return np.load(Path(self.folder, f"{name}.npy"), mmap_mode="r")

    def network(self) -> Network:
        """With the weights that everyone starts from."""
        network = Network(self.classes)
        with np.load(Path(self.folder, "weights.npz")) as weights:
            given = [torch.from_numpy(weights[name]) for name in weights.files]  # in the order of the layers
        network.load_state_dict(dict(zip(network.state_dict(), given, strict=True)))
        return network

    def normalised(self, images: Array) -> Tensor:
        """(B, C, H, W) bytes as the network sees them."""
        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        return (torch.from_numpy(np.array(images)).float() / 255 - mean) / std


class Network(nn.Module):
    """The paper's simple CNN with its 256-d projection head, for 32x32 colour; gives z and logits."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(84, 84), nn.ReLU(), nn.Linear(84, 256))
        self.classifier = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        z = self.head(self.encoder(images))
        return z, self.classifier(z)


@torch.no_grad()
def tested(network: nn.Module, job: Job) -> dict[str, float]:
    """Accuracy and cross-entropy on the whole test set."""
    network.eval()
    images, labels = job.array("test_images"), torch.from_numpy(job.array("test_labels").copy())
    logits = torch.cat([network(job.normalised(images[at : at + 1000]))[1] for at in range(0, len(images), 1000)])
    right = (logits.argmax(dim=1) == labels).float().mean()
    return {"accuracy": float(right), "loss": float(F.cross_entropy(logits, labels))}


def answer(path: str, packages: list[str], ends: list[float], test: dict[str, float], how: str) -> None:
    """Write what the benchmark reads: when each round ended (time.time()), test results, versions, the set-up."""
    versions = {package: version_of(package) for package in packages}
    Path(path).write_text(json.dumps({"ends": ends, **test, "versions": versions, "how": how}))


def version_of(package: str) -> str:
    """Of a package that is installed, or only on the path."""
    try:
        return version(package)
    except PackageNotFoundError:
        return str(import_module(package).__version__)
