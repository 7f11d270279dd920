"""`fedproc predict` and `fedproc export`: use a trained model."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproc.cli.strict import Parser
from fedproc.errors import InputError, RunError, meant, with_flags

if TYPE_CHECKING:  # at run time in the functions below: help needs none of it
    from rich.console import Console

    from fedproc.runs.model import Model, Prediction


def add(commands: Any) -> None:
    predict: Parser = commands.add_parser("predict")
    predict.add_argument("run", metavar="RUN", type=Path, help="folder of a finished run, or a model file")
    predict.add_argument("images", metavar="IMAGE", nargs="+", type=Path, help="image files, or folders of them")
    predict.add_argument("--out", type=Path, default=Path("predictions.csv"), help="default: predictions.csv")
    predict.set_defaults(command=predict_command)
    export: Parser = commands.add_parser("export")
    export.add_argument("run", metavar="RUN", type=Path, help="folder of a finished run, or a model file")
    export.add_argument("--format", choices=["onnx"], default="onnx", help="default: onnx")
    export.add_argument("--out", type=Path, help="default: RUN/model.onnx")
    export.set_defaults(command=export_command)
    for parser in (predict, export):
        words = "a client's own model, by its number or its site's name, where the run saved it (solo, --keep-clients)"
        parser.add_argument("--client", metavar="CLIENT", help=words)
        parser.add_argument("--network", metavar="MODULE:CLASS", help="your own encoder, for a model trained with it")
        parser.add_argument("--averaged", action="store_true", help="the averaged weights, where the run saved them")


def _model(parsed: argparse.Namespace) -> Model:
    from fedproc.runs.folder import client_model
    from fedproc.runs.model import load_model

    name = "averaged.safetensors" if parsed.averaged else "model.safetensors"
    if parsed.client is not None:
        name = client_model(_number(parsed.run, parsed.client))
    return load_model(parsed.run, name, parsed.network)


def _number(run: Path, client: str) -> int:
    """Of a client by its number or, where clients are sites, by its name."""
    from fedproc.runs.schema import PartitionFile, read

    held = read(run / "partition.json", PartitionFile) if run.is_dir() else None
    names = held.client_names if held is not None else []
    if client in names:
        return names.index(client)
    try:
        return int(client)
    except ValueError:
        known = f"a number, or one of {', '.join(names)}" if names else "a number"
        raise InputError(f"--client {client}: expected {known}{meant(client, names)}") from None


def predict_command(parsed: argparse.Namespace, console: Console) -> int:
    from rich.progress import Progress

    from fedproc.cells import safe_cell
    from fedproc.data.names import readable
    from fedproc.files import kind_of, write_file
    from fedproc.runs.model import CHUNK

    if (what := kind_of(parsed.out)) is not None:
        raise InputError(f"--out {parsed.out}: {what}, which is not replaced; expected the name of a CSV file")
    model = _model(parsed)
    paths = [path for given in parsed.images for path in _images(given)]
    found: list[Prediction | InputError] = []
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("images", total=len(paths))
        for start in range(0, len(paths), CHUNK):
            found += _classified(model, paths[start : start + CHUNK])
            progress.update(task, completed=len(found))

    def fill(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["path", "class", "probability", "nearest_prototype", "error"])
            for where, each in zip(paths, found, strict=True):
                writer.writerow([safe_cell(str(cell)) for cell in (readable(str(where)), *_fields(each))])

    write_file(parsed.out, fill)
    failed = [each for each in found if isinstance(each, InputError)]
    console.print(f"{len(paths) - len(failed)} images classified, written to {parsed.out}", highlight=False)
    if failed:
        raise RunError(
            f"{len(failed)} of {len(paths)} images cannot be read, the first: {readable(with_flags(failed[0]))}"
        )
    return 0


def _classified(model: Model, paths: list[Path]) -> list[Prediction | InputError]:
    """What each image is, or what is wrong with its file."""
    import numpy as np

    from fedproc.data.pictures import Picture, concurrently, tried

    pixels = concurrently(lambda path: tried(lambda: model.pixels(Picture.at(path))), paths)
    readable = [each for each in pixels if not isinstance(each, InputError)]
    classes = iter(model.predict(np.stack(readable)) if readable else [])
    return [each if isinstance(each, InputError) else next(classes) for each in pixels]


def _fields(found: Prediction | InputError) -> list[str]:
    from fedproc.data.names import readable

    if isinstance(found, InputError):
        return ["", "", "", readable(str(found))]
    return [found.label, f"{found.probability:.6f}", found.prototype_label or "", ""]


def _images(given: Path) -> list[Path]:
    from fedproc.data.pictures import EXTENSIONS

    if given.is_dir():
        found = sorted(
            p for p in given.rglob("*") if p.suffix.lower() in EXTENSIONS and p.is_file() and p.name[0] != "."
        )
        if not found:
            raise InputError(f"{given}: no image in it ({', '.join(EXTENSIONS)})")
        return found
    if not given.is_file():
        what = "neither an image file nor a folder" if given.exists() else "no such image or folder"
        raise InputError(f"{given}: {what}")
    return [given]


def export_command(parsed: argparse.Namespace, console: Console) -> int:
    from fedproc.files import write_file
    from fedproc.runs.model import export_onnx

    model = _model(parsed)
    out = parsed.out or (parsed.run.parent if parsed.run.is_file() else parsed.run) / "model.onnx"
    differences = []
    write_file(out, lambda path: differences.append(export_onnx(model, path)))
    console.print(f"{out}: checked with ONNX Runtime, differs by {differences[0]:.1e} at most", highlight=False)
    return 0
