"""What a run makes in its folder. Nothing else in there is deleted, and no link is followed: the folder may be a
stranger's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fedproc.errors import InputError
from fedproc.files import kind_of

STATE = r"client-\d{6,}-round-\d{6,}\.safetensors"  # of a client, in clients/
ROUND = r"round-\d{6,}"  # a checkpoint's folder
PART = r"checkpoint\.json|shard-\d{3,}\.safetensors"  # of a checkpoint
TOP = (
    r"(config|environment|partition|result)\.json|(metrics|confusion|sites)\.jsonl|(model|averaged)\.safetensors|"
    r"model\.onnx|(split|(test-)?predictions|sites)\.csv"
)
TENSORBOARD = (
    r"events\.out\.tfevents\.[^/]*|rounds-written|round-(embedded|finished)|projector_config\.pbtxt|"
    r"\d{5,}/z/(tensors\.tsv|metadata\.tsv|sprite\.png)"
)
# what MLflow and Weights & Biases write: their names are theirs, so whatever lies in a run of theirs
MLFLOW = r"mlflow\.db|run-id|rounds-written|round-finished|artifacts/.*"
WANDB = r"run-id|rounds-written|round-finished|latest-run|debug(-internal)?\.log|(offline-)?run-[^/]+/.*"
MADE = re.compile(
    rf"(?P<top>{TOP})|checkpoint/{ROUND}/({PART})|clients/{STATE}|models/client-\d{{3,}}\.safetensors|"
    rf"tensorboard/({TENSORBOARD})|mlflow/({MLFLOW})|wandb/({WANDB})"
)
FOLDERS = ("checkpoint", "clients", "models", "tensorboard")
TRACKERS = ("mlflow", "wandb")


def expect_no_links(folder: Path) -> None:
    """Refuse a run folder in which the run's own names are links, pipes or devices."""
    for entry in sorted(folder.iterdir()):
        if entry.name in FOLDERS:
            if (what := kind_of(entry)) not in (None, "a folder"):
                raise _foreign(entry, what)
            for name in _below(folder, entry.name):
                if (what := kind_of(folder / name)) is not None:
                    raise _foreign(folder / name, what)
        elif entry.name in TRACKERS:  # in which some links are the trackers' own
            if (what := kind_of(entry)) not in (None, "a folder"):
                raise _foreign(entry, what)
        elif re.fullmatch(TOP, entry.name) and (what := kind_of(entry)) is not None:
            raise _foreign(entry, what)


def _foreign(path: Path, what: str) -> InputError:
    return InputError(f"{path}: {what}, expected what the run itself made; move it away, or take another --out")


def remove(folder: Path, *tops: str) -> None:
    """Delete what the run made under these names of its folder, and folders that are empty then."""
    for top in tops:
        place = folder / top
        if kind_of(place) == "a folder":
            for name in _below(folder, top):
                if MADE.fullmatch(name):
                    (folder / name).unlink()
            for inner, _, _ in os.walk(place, topdown=False):
                if not os.listdir(inner):
                    os.rmdir(inner)
        elif MADE.fullmatch(top):
            place.unlink(missing_ok=True)


def _below(folder: Path, top: str) -> Iterator[str]:
    """All that lies below a folder and is no folder, by path, without going through links."""
    for where, inner, files in os.walk(folder / top):
        base = Path(where).relative_to(folder)
        links = [name for name in inner if os.path.islink(os.path.join(where, name))]
        yield from ((base / name).as_posix() for name in [*links, *files])
