"""Using what was trained: a model file of a run as a network, its predictions, and its ONNX export."""

from __future__ import annotations

import json
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fedproc.data.augment import Normalisation
from fedproc.data.images import Bytes
from fedproc.errors import InputError, RunError
from fedproc.networks import Network, NetworkSpec, build
from fedproc.prototypes import similarities
from fedproc.runs.model_file import check_shapes, read_about, read_tensors

CHUNK = 256


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
    ) -> None:
        super().__init__()
        self.network = network.eval()
        self.class_names = class_names
        self.spec = spec
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

    @torch.no_grad()
    def predict(self, images: Bytes) -> list[Prediction]:
        """One prediction an image of (N, C, H, W) bytes."""
        found = []
        has_prototypes = bool(self.get_buffer("known").any())
        for start in range(0, len(images), CHUNK):
            pixels = torch.from_numpy(images[start : start + CHUNK])
            probabilities, _, near = self(pixels)
            for row, closest in zip(probabilities, near.argmax(dim=-1).tolist(), strict=True):
                best = int(row.argmax())
                label = self.class_names[closest] if has_prototypes else None
                found.append(Prediction(self.class_names[best], float(row[best]), label))
        return found


def load_model(run: Path, name: str = "model.safetensors", network: str | None = None) -> Model:
    """The model of a run folder, or a model file itself.

    A model of a person's own encoder runs that person's code, so its import path must be given as `network`: what
    a file says is not reason enough.
    """
    path = run if run.exists() and not run.is_dir() else run / name
    if not path.is_file():
        if name == "model.safetensors" and (run / "models").is_dir():
            raise InputError(f"{run}: its clients have models of their own; choose one with --client")
        if not path.exists():
            again = "; the command of the run makes it again" if (run / "result.json").is_file() else ""
            raise InputError(f"{path}: no such file; expected the folder of a finished run{again}")
    about, raw, header = read_about(path)
    spec = about.spec
    if spec.foreign and network != spec.name:
        raise InputError(f"{path}: made with its own encoder; give --network {spec.name} if you trust it")
    check_shapes(path, spec, header)
    tensors = read_tensors(path, about, raw)
    prototypes, known = tensors.pop("prototypes", None), tensors.pop("known", None)
    made = build(spec, 0)
    try:
        made.load_state_dict(tensors)
    except (ValueError, RuntimeError) as error:  # of a person's own encoder
        raise InputError(f"{path}: not the weights of --network {spec.name}: {error}") from error
    normalisation = Normalisation(tuple(about.mean), tuple(about.std))
    return Model(made, normalisation, tuple(about.class_names), prototypes, known, spec).eval()


def export_onnx(model: Model, path: Path) -> float:
    """Write the model as ONNX and run the file: returns the largest difference of its probabilities from ours.

    Input `pixels` is float32 0 to 255 (N, C, H, W); outputs are `probabilities`, `z` and `similarities`; class
    names stand in the file's metadata.
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
    onnx.helper.set_model_props(made, {"class_names": json.dumps(model.class_names)})
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
