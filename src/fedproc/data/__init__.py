"""Data sets by name, or a user's own images, and the defaults that follow each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedproc.data import fashion_mini, own, tiny_imagenet
from fedproc.data.augment import Normalisation
from fedproc.data.cifar import CIFAR10, CIFAR100
from fedproc.data.idx import FASHION_MNIST, MNIST
from fedproc.data.images import Images
from fedproc.data.pictures import Fit
from fedproc.errors import InputError, meant

__all__ = ["FEDERATION", "SOURCES", "Images", "Source", "load", "source_of"]


@dataclass(frozen=True)
class Source:
    """What `fedproc list data` says of a data set, and what an experiment on it takes by default."""

    summary: str
    network: str = "simple-cnn"
    lr: float = 0.01
    augment: str = "none"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    mu: tuple[float, float] = (0.01, 5.0)  # of FedProx and of MOON
    mu_of_many: float | None = None  # of MOON with 50 clients and more
    decorrelation: float = 0.1  # beta of FedDecorr
    resizable: bool = False
    fit: Fit = "crop"  # how images become squares

    def options(self, clients: float) -> dict[str, dict[str, float]]:
        """The methods' options that follow the data set."""
        moon = self.mu_of_many if self.mu_of_many is not None and clients >= 50 else self.mu[1]
        return {"fedprox": {"mu": self.mu[0]}, "moon": {"mu": moon}, "feddecorr": {"beta": self.decorrelation}}

    def normalisation(self, channels: int) -> Normalisation:
        spread = channels if len(self.mean) == 1 else 1
        return Normalisation(self.mean * spread, self.std * spread)


SOURCES: dict[str, Source] = {
    "fashion-mini": Source(
        "10,000 + 2,000 images of Fashion-MNIST, 10 classes, 28x28 grey; inside the package",
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "fashion-mnist": Source(
        "60,000 + 10,000 images, 10 classes, 28x28 grey; --data-dir or downloaded",
        mean=(0.2860,),
        std=(0.3530,),
    ),
    "mnist": Source(
        "60,000 + 10,000 digits, 10 classes, 28x28 grey; --data-dir or downloaded",
        mean=(0.1307,),
        std=(0.3081,),
    ),
    "cifar10": Source(
        "50,000 + 10,000 images, 10 classes, 32x32 colour; --data-dir or downloaded",
        augment="crop-flip",
        mean=(125.3 / 255, 123.0 / 255, 113.9 / 255),
        std=(63.0 / 255, 62.1 / 255, 66.7 / 255),
    ),
    "cifar100": Source(
        "50,000 + 10,000 images, 100 classes, 32x32 colour; --data-dir or downloaded",
        network="resnet50",
        lr=0.1,
        augment="crop-flip-rotate",
        mean=(0.50708, 0.48655, 0.44092),
        std=(0.26733, 0.25644, 0.27615),
        mu=(0.001, 1.0),
        decorrelation=0.05,
        mu_of_many=10.0,
    ),
    "tiny-imagenet": Source(
        "100,000 + 10,000 images, 200 classes, 64x64 colour (--image-size 32 scales); --data-dir or downloaded",
        network="resnet50",
        lr=0.1,
        mu=(0.001, 1.0),
        decorrelation=0.05,
        resizable=True,
    ),
}
FOLDER = Source(
    "your own images: a folder with train/<class>/* and test/<class>/*, or <class>/*, or <site>/<class>/*, or "
    "<site>/train/<class>/* and <site>/test/<class>/*; or a CSV file of path,label[,group][,site][,split]",
    resizable=True,
    fit="pad",
)


FEDERATION = "federation"  # what the images of sites that share none are called


def source_of(name: str) -> Source:
    """The named data set, or the one for a user's own images."""
    return SOURCES.get(name, FOLDER)


def load(
    name: str,
    data_dir: Path | None,
    image_size: int | None,
    test_fraction: float,
    data_seed: int,
    fit: Fit = "pad",
    skip_unreadable: bool = False,
) -> Images:
    """Read a data set; what follows `image_size` only matters for a user's own images."""
    if image_size is not None and not source_of(name).resizable:
        raise InputError(f"--image-size {image_size}: only for your own images; {name} has its own size")
    match name:
        case "fashion-mini":
            return fashion_mini.read()
        case "fashion-mnist":
            return FASHION_MNIST.read(data_dir)
        case "mnist":
            return MNIST.read(data_dir)
        case "cifar10":
            return CIFAR10.read(data_dir)
        case "cifar100":
            return CIFAR100.read(data_dir)
        case "tiny-imagenet":
            return tiny_imagenet.read(data_dir, image_size)
    path = Path(name)
    if not own.is_manifest(path) and not path.is_dir() and "/" not in name:
        expected = f"{', '.join(SOURCES)}, or the path of an image folder or CSV file"
        raise InputError(f"--data {name}: expected {expected}{meant(name, SOURCES)}")
    return own.read(path, image_size, test_fraction, data_seed, fit, skip_unreadable)
