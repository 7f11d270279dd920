"""Networks by name, or a user's own encoder by import path."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from fedproc import streams
from fedproc.errors import InputError
from fedproc.networks.batch_norm import convert
from fedproc.networks.flat import Layout
from fedproc.networks.initial import initialise
from fedproc.networks.network import EMBEDDING, Network, feature_size
from fedproc.networks.own import OwnEncoder
from fedproc.networks.resnet import resnet18, resnet50
from fedproc.networks.simple_cnn import simple_cnn

__all__ = [
    "EMBEDDING",
    "NETWORKS",
    "RESIDUAL",
    "Layout",
    "Network",
    "NetworkSpec",
    "build",
    "encoder_file",
    "imported",
    "layout_of",
    "load_encoder",
    "load_network",
    "shapes",
]

NETWORKS = {
    "simple-cnn": "two 5x5 convolutions, two linear layers; 92,626 parameters with 10 classes at 32x32",
    "resnet18": "CIFAR ResNet-18 with batch-norm and a --width (64 is the usual one)",
    "resnet50": "CIFAR ResNet-50 with batch-norm and a --width; 28,246,948 parameters with 100 classes at width 64",
    "module:Class": "your own nn.Module encoder by import path, called without arguments, (B, C, H, W) to (B, d)",
}
RESIDUAL = ("resnet18", "resnet50")  # what --width and --norm are for
SMALLEST = 16


@dataclass(frozen=True)
class NetworkSpec:
    """All that determines a network's graph; lanes can share a module when their specs are equal."""

    name: str
    width: int
    channels: int
    side: int
    classes: int
    normalize_z: bool
    dtype: torch.dtype = torch.float32
    norm: str = "batch"
    own: OwnEncoder | None = None

    @property
    def foreign(self) -> bool:
        """Whether the encoder is the user's own: it may draw from torch's global generator."""
        return ":" in self.name  # also of one that was given as an object


def build(spec: NetworkSpec, seed: int) -> Network:
    """The network with its initial weights, a pure function of spec and seed."""
    if spec.side < SMALLEST:
        raise InputError(f"--image-size {spec.side}: expected at least {SMALLEST}")
    if spec.foreign:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.torch_seed(streams.key(seed, streams.Purpose.TORCH)))
            encoder = convert(spec.own.made() if spec.own is not None else _import_encoder(spec.name))
            try:
                features = feature_size(encoder, spec.channels, spec.side)
            except Exception as error:  # any error of the user's code is bad input
                raise InputError(f"--network {spec.name}: {error}") from error
        network = Network(encoder, features, spec.classes, spec.normalize_z)
        initialise(network.head, seed)
        initialise(network.classifier, streams.fold(seed, 1))
        return network.to(spec.dtype)
    network = _raw(spec)
    initialise(network, seed)
    return network.to(spec.dtype)


def _raw(spec: NetworkSpec) -> Network:
    """One of our own networks, not yet initialised."""
    if spec.name == "simple-cnn":
        encoder = simple_cnn(spec.channels, spec.side)
    elif spec.name in RESIDUAL:
        resnet = resnet18 if spec.name == "resnet18" else resnet50
        encoder = convert(resnet(spec.channels, spec.width, spec.norm))
    else:
        raise InputError(f"--network {spec.name}: expected one of {', '.join(NETWORKS)}")
    return Network(encoder, feature_size(encoder, spec.channels, spec.side), spec.classes, spec.normalize_z)


def shapes(spec: NetworkSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of each tensor of one of our own networks; no memory is taken for them."""
    if spec.side < SMALLEST:
        raise InputError(f"--image-size {spec.side}: expected at least {SMALLEST}")
    with torch.device("meta"):
        network = _raw(spec).to(spec.dtype)
    found = network.state_dict().items()
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in found}


def load_encoder(network: Network, path: Path) -> None:
    """Start the encoder from a safetensors file: the encoder's own names, or those of a saved model."""
    found = _tensors(path, "--encoder-weights")
    if any(name.startswith("encoder.") for name in found):
        found = {name.removeprefix("encoder."): t for name, t in found.items() if name.startswith("encoder.")}
    _load(network.encoder, found, f"--encoder-weights {path}", "encoder")


def load_network(network: Network, path: Path) -> None:
    """Start the whole network from a saved model."""
    found = _tensors(path, "--start-from")
    beside = ("prototypes", "known")  # of the classes, in the same file
    _load(network, {n: t for n, t in found.items() if n not in beside}, f"--start-from {path}", "network")


def _tensors(path: Path, flag: str) -> dict[str, torch.Tensor]:
    if path.exists() and not path.is_file():
        raise InputError(f"{flag} {path}: expected a safetensors file")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{flag} {path}: not a readable safetensors file: {error}") from error


def _load(module: nn.Module, found: dict[str, torch.Tensor], given: str, what: str) -> None:
    """Refuse tensors that are not the module's own."""
    wanted = module.state_dict()
    for name in sorted(set(wanted) | set(found)):
        if name not in found or name not in wanted:
            where = "is missing in the file" if name not in found else f"is not part of this {what}"
            raise InputError(f"{given}: {name} {where}; expected the weights of the same --network")
        if found[name].shape != wanted[name].shape:
            shapes = f"{tuple(found[name].shape)}, expected {tuple(wanted[name].shape)}"
            raise InputError(f"{given}: {name} has shape {shapes}")
        if found[name].is_floating_point() and not bool(torch.isfinite(found[name]).all()):
            raise InputError(f"{given}: {name} is not finite")
    module.load_state_dict(found)


def layout_of(network: Network, spec: NetworkSpec) -> Layout:
    """Where the network's tensors lie in its flat vectors."""
    try:
        return Layout.of(network, channels_last=spec.name.startswith("resnet"))
    except ValueError as error:
        raise InputError(f"--network {spec.name}: {error}") from error


def encoder_file(path: str) -> Path | None:
    """The source file of a user's own encoder, by its import path."""
    with _working_folder_first():
        found = importlib.util.find_spec(path.partition(":")[0])
    return Path(found.origin) if found is not None and found.origin and Path(found.origin).is_file() else None


def imported(path: str) -> OwnEncoder:
    """A user's own encoder by its import path."""
    module_name, _, attribute = path.partition(":")
    try:
        with _working_folder_first():
            return OwnEncoder.of(getattr(importlib.import_module(module_name), attribute))
    except InputError:
        raise
    except Exception as error:  # any error of the user's code is bad input
        raise InputError(f"--network {path}: cannot be imported: {error}") from error


def _import_encoder(path: str) -> nn.Module:
    module_name, _, attribute = path.partition(":")
    try:
        with _working_folder_first():
            made = getattr(importlib.import_module(module_name), attribute)()
    except Exception as error:
        raise InputError(f"--network {path}: cannot make the encoder: {error}") from error
    if not isinstance(made, nn.Module):
        raise InputError(f"--network {path}: expected an nn.Module, got {type(made).__name__}")
    return made


@contextmanager
def _working_folder_first() -> Iterator[None]:
    """Within, modules of the working folder can be imported."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
