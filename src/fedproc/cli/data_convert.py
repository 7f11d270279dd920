"""`fedproc data convert`: a folder of DICOM files as PNG files and a CSV file."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from fedproc.data.conversion import MANIFEST, Settings, convert
from fedproc.data.dicom import require_pydicom
from fedproc.errors import InputError, RunError
from fedproc.runs.lock import expect_folder

SHOWN = 20


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="DIR", type=Path, help="folder of DICOM files; the folders in it are classes")
    parser.add_argument("--to", choices=["png"], default="png", help="default: png, 16 bits")
    parser.add_argument("--out", type=Path, required=True, help="new folder, or one of a conversion that was stopped")
    words = "levels from black to white, in the modality's units (Hounsfield units of a CT); default: --percentiles"
    parser.add_argument("--window", metavar=("CENTRE", "WIDTH"), nargs=2, type=float, help=words)
    words = "the window from these percentiles of the levels of all files; default: 0.5 99.5"
    parser.add_argument("--percentiles", metavar=("LOW", "HIGH"), nargs=2, type=float, default=[0.5, 99.5], help=words)
    parser.add_argument("--labels", type=Path, metavar="CSV", help="classes by path,label or patient,label instead")
    words = "keep the key of the pseudonyms in this file, made if it is not there; default: thrown away"
    parser.add_argument("--key", type=Path, metavar="FILE", help=words)
    parser.set_defaults(command=convert_command)


def convert_command(parsed: argparse.Namespace, console: Console) -> int:
    require_pydicom()
    expect_folder(parsed.out)
    settings = Settings(_window(parsed), _percentiles(parsed), parsed.labels, parsed.key)
    if parsed.key is not None and parsed.out.resolve() in parsed.key.resolve().parents:
        raise InputError(f"--key {parsed.key}: inside --out, where it would go wherever the images go")
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if parsed.interrupt is not None:
                parsed.interrupt.check()
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(tasks[what], completed=done)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is unusual about a header and does not matter
            found = convert(parsed.source, parsed.out, settings, advance)
    if found.window is not None:
        console.print(f"levels {found.window.low:g} to {found.window.high:g} are black to white", highlight=False)
    modalities = ", ".join(f"{count:,} {name}" for name, count in found.modalities.items())
    said = f"{found.images:,} images of {modalities}; listed in {parsed.out / MANIFEST}"
    console.print(said, highlight=False, soft_wrap=True)
    if len(found.modalities) > 1:
        console.print("one window for several modalities is seldom right: convert each by itself", highlight=False)
    if found.without_pixels:
        console.print(f"{found.without_pixels:,} files without pixels left out", highlight=False)
    if found.burnt_in:
        console.print(f"{found.burnt_in:,} files say that text is burnt into them; it still is", highlight=False)
    for reason in found.failed[:SHOWN]:
        console.print(f"left out: {reason}", highlight=False, soft_wrap=True)
    if found.failed:
        raise RunError(f"{len(found.failed):,} files could not be converted and are left out")
    return 0


def _window(parsed: argparse.Namespace) -> tuple[float, float] | None:
    if parsed.window is None:
        return None
    centre, width = parsed.window
    if not width > 0:
        raise InputError(f"--window {centre:g} {width:g}: expected a width above 0")
    return centre, width


def _percentiles(parsed: argparse.Namespace) -> tuple[float, float]:
    low, high = parsed.percentiles
    if not 0 <= low < high <= 100:
        raise InputError(f"--percentiles {low:g} {high:g}: expected two numbers from 0 to 100, the smaller one first")
    return low, high
