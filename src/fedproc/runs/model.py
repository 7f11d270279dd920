"""Using what was trained: a model file of a run as a network, its predictions, and its ONNX export."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from fedproc.data.augment import Normalisation
from fedproc.data.images import Bytes
from fedproc.data.pictures import Fit, Picture
from fedproc.data.preprocessing import preprocessing
from fedproc.errors import InputError, RunError
from fedproc.networks import Network, NetworkSpec, build, imported
from fedproc.networks.own import Encoder, OwnEncoder
from fedproc.own_code import NOTEBOOK
from fedproc.prototypes import similarities
from fedproc.runs.model_file import check_shapes, read_about, read_tensors

CHUNK = 256

Given = str | Encoder | OwnEncoder | None


@dataclass(frozen=True)
class Prediction:
    """The classifier's class and its probability, and the class of the nearest prototype where there are some."""

    label: str
    probability: float
    prototype_label: str | None


class Model(nn.Module):
    """From pixels 0 to 255 (N, C, H, W) to probabilities (N, K), embeddings z (N, Q) and similarities (N, K).

    A class without a prototype has similarity -2, below every cosine.
    """

    def __init__(
        self,
        network: Network,
        normalisation: Normalisation,
        class_names: tuple[str, ...],
        prototypes: Tensor | None,
        known: Tensor | None,
        spec: NetworkSpec,
        fit: Fit = "crop",
    ) -> None:
        super().__init__()
        self.network = network.eval()
        self.class_names = class_names
        self.spec = spec
        self.fit: Fit = fit
        self.preprocessing = preprocessing(spec.side, spec.channels, fit, normalisation)
        empty = torch.zeros(spec.classes, 1, dtype=spec.dtype)
        middle, scale = normalisation.levels(spec.dtype, torch.device("cpu"))
        self.register_buffer("middle", middle)
        self.register_buffer("scale", scale)
        self.register_buffer("prototypes", empty if prototypes is None else prototypes)
        self.register_buffer("known", torch.zeros(spec.classes, dtype=torch.bool) if known is None else known)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, logits = self.network((pixels.to(self.spec.dtype) - self.get_buffer("middle")) * self.get_buffer("scale"))
        prototypes, known = self.get_buffer("prototypes"), self.get_buffer("known")
        if prototypes.shape[-1] != z.shape[-1]:
            prototypes = prototypes.expand(-1, z.shape[-1])
        near = torch.where(known, similarities(z, prototypes), torch.full_like(logits, -2.0))
        return logits.softmax(dim=-1), z, near

    def pixels(self, picture: Picture) -> Bytes:
        """An image file as this model wants it: (C, H, W) bytes."""
        return picture.decode(self.spec.side, self.spec.channels, self.fit)

    @torch.no_grad()
    def predict(self, images: Bytes) -> list[Prediction]:
        """One prediction an image of (N, C, H, W) bytes."""
        found = []
        has_prototypes = bool(self.get_buffer("known").any())
        for start in range(0, len(images), CHUNK):
            pixels = torch.from_numpy(images[start : start + CHUNK])
            probabilities, _, near = self(pixels)
            if not bool(torch.isfinite(probabilities).all()):
                raise InputError("the model gives no number for an image: its weights overflow; train it again")
            for row, closest in zip(probabilities, near.argmax(dim=-1).tolist(), strict=True):
                best = int(row.argmax())
                label = self.class_names[closest] if has_prototypes else None
                found.append(Prediction(self.class_names[best], float(row[best]), label))
        return found


def load_model(run: Path, name: str = "model.safetensors", network: Given = None) -> Model:
    """The model of a run folder, or a model file itself.

    A model of a person's own encoder runs that person's code, so its import path must be given as `network`, or the
    encoder as an object: what a file says is not reason enough. One whose source is another than the model was trained
    with is refused.
    """
    path = run if run.exists() and not run.is_dir() else run / name
    if not path.is_file():
        if name == "model.safetensors" and (run / "models").is_dir():
            raise InputError(f"{run}: its clients have models of their own; choose one with --client")
        if name.startswith("models/") and (run / "config.json").is_file():
            raise InputError(_without_client(run, path))
        if not path.exists():
            again = "; the command of the run makes it again" if (run / "result.json").is_file() else ""
            raise InputError(f"{path}: no such file; expected the folder of a finished run{again}")
    about, raw, header = read_about(path)
    _expect_trust(path, about.network, network)
    check_shapes(path, about.spec, header)
    return model_of(path, raw, read_tensors(path, about, raw), network)


def _expect_trust(path: Path | str, said: str, network: Given) -> None:
    """Refuse to run the code that a file names, unless the caller gives it, or names it, too."""
    if ":" not in said or network == said or not (network is None or isinstance(network, str)):
        return
    name = said.removeprefix(f"{NOTEBOOK}:")
    way = f"give --network {said}"
    if name != said:
        way = f"in Python, `fedproc.load_model(path, network={name})` takes it"
        if not all(part.isidentifier() for part in name.split(".")):  # a lambda, or something within a function
            way = f"in Python, `fedproc.load_model(path, network=...)` takes what it was made with ({name})"
    other = "" if network is None else f", which --network {network} is not"
    raise InputError(f"{path}: made with its own encoder{other}; {way} if you trust it")


def _encoder(path: Path | str, about: dict[str, Any], network: Given) -> OwnEncoder | None:
    """The encoder that the caller gives for a file that names one; refused where it is not what was trained."""
    said = about["network"]
    _expect_trust(path, said, network)
    if ":" not in said or network is None:
        return None
    if isinstance(network, str):
        own = imported(network)
    else:
        own = network if isinstance(network, OwnEncoder) else OwnEncoder.of(network)
    differs = own.differs(about.get("encoder_source"))
    if differs and own.name == said:
        raise InputError(
            f"--network {own.name}: its source has changed since {path} was trained with it, or it is given in another "
            "way (a class, a function that makes one, a module); give it as it was then, or train again"
        )
    if differs or (differs is None and own.name != said):
        raise InputError(f"--network {own.name}: not the encoder that {path} was trained with, {said}; give that one")
    return own


def model_of(path: Path | str, about: dict[str, Any], tensors: dict[str, Tensor], network: Given = None) -> Model:
    """The model that a file, named by `path`, holds: what it says of itself, and its tensors."""
    try:
        spec = NetworkSpec(
            name=about["network"],
            width=about["width"],
            channels=about["channels"],
            side=about["image_size"],
            classes=len(about["class_names"]),
            normalize_z=about["normalize_z"],
            dtype=torch.float64 if about["dtype"] == "float64" else torch.float32,
            norm=about["norm"],
            own=_encoder(path, about, network),
        )
        normalisation = Normalisation(tuple(about["mean"]), tuple(about["std"]))
        fit = about.get("preprocessing", {"fit": "crop"})["fit"]  # of earlier versions: all were cropped
        if fit not in get_args(Fit):
            raise InputError(f"{path}: its images are to be made squares by {fit!r}, which this version does not know")
        named = {name: tensor for name, tensor in tensors.items() if name not in ("prototypes", "known")}
        prototypes, known = tensors.get("prototypes"), tensors.get("known")
        made = build(spec, 0)
        made.load_state_dict(named)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{path}: not a model of a fedproc run: {error}") from error
    return Model(made, normalisation, tuple(about["class_names"]), prototypes, known, spec, fit).eval()


def _without_client(run: Path, path: Path) -> str:
    kept = sorted(int(each.stem.partition("-")[2]) for each in path.parent.glob("client-*.safetensors"))
    if kept:
        return f"{path}: no such model; the run kept {len(kept)}, of clients {kept[0]} to {kept[-1]}"
    return (
        f"{path}: the run kept no clients' models; train with --keep-clients true (or --method solo) into another "
        "folder, or leave --client out for the model of all"
    )


def export_onnx(model: Model, path: Path) -> float:
    """Write the model as ONNX and run the file: returns the largest difference of its probabilities from ours.

    Input `pixels` is float32 0 to 255 (N, C, H, W); outputs are `probabilities`, `z` and `similarities`; class
    names, and what is done to an image before, stand in the file's metadata.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise RunError(
            f"--format onnx needs a package that is not here ({error.name}): pip install 'fedproc[export]'"
        ) from error
    spec = model.spec
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (3, spec.channels, spec.side, spec.side), generator=generator).to(torch.float32)
    names = ["probabilities", "z", "similarities"]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of packages that nobody here needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (pixels,),
            input_names=["pixels"],
            output_names=names,
            dynamic_shapes=({0: torch.export.Dim("images", min=1)},),
            dynamo=True,
            verbose=False,
        )
    if program is None:
        raise RunError(f"{path}: torch gave no ONNX program")
    made = program.model_proto
    about = {"class_names": model.class_names, "preprocessing": model.preprocessing}
    onnx.helper.set_model_props(made, {name: json.dumps(value) for name, value in about.items()})
    onnx.checker.check_model(made)
    content = made.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    worst = 0.0
    for count in (1, 3):
        (found,) = session.run(["probabilities"], {"pixels": pixels[:count].numpy()})
        with torch.no_grad():
            expected = model(pixels[:count])[0]
        worst = max(worst, float((torch.from_numpy(found) - expected).abs().max()))
    if worst > 1e-4:
        raise RunError(f"{path}: the exported file differs from the model by {worst:.2g}, expected at most 1e-4")
    path.write_bytes(content)
    return worst
