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
OWN = r"(\.tmp-)?(run-id|rounds-written|round-(embedded|finished))"  # what trackers of ours remember
TENSORBOARD = (
    rf"events\.out\.tfevents\.[^/]*|{OWN}|projector_config\.pbtxt|"
    r"\d{5,}/z/(tensors\.tsv|metadata\.tsv|sprite\.png)"
)
# what MLflow and Weights & Biases write: their names are theirs, so whatever lies in a run of theirs
MLFLOW = rf"mlflow\.db|{OWN}|artifacts/.*"
WANDB = rf"{OWN}|latest-run|debug(-internal)?\.log|(offline-)?run-[^/]+/.*"
MADE = re.compile(
    rf"(?P<top>{TOP})|checkpoint/{ROUND}/({PART})|clients/{STATE}|models/client-\d{{3,}}\.safetensors|"
    rf"tensorboard/({TENSORBOARD})|mlflow/({MLFLOW})|wandb/({WANDB})"
)
FOLDERS = ("checkpoint", "clients", "models", "tensorboard")
TRACKERS = ("mlflow", "wandb")
# links that W&B makes and replaces in its folder, and where they lead; it never writes through one
IN_ITS_RUN = r"(offline-)?run-[^/]+"
LINKS = {
    "latest-run": IN_ITS_RUN,
    r"debug(-internal)?\.log": rf"{IN_ITS_RUN}/logs/debug(-internal)?\.log",
    rf"{IN_ITS_RUN}/logs/debug-core\.log": r"/(.*/)?core-debug-[\w-]+\.log",  # in W&B's cache
}
MOST, DEEPEST = 100_000, 40  # files and folders in a tracker's folder, and how far down


def expect_no_links(folder: Path) -> None:
    """Refuse a run folder in which the run's own names are links, pipes or devices."""
    for entry in sorted(folder.iterdir()):
        if entry.name in FOLDERS:
            if (what := kind_of(entry)) not in (None, "a folder"):
                raise foreign(entry, what)
            for name in _below(folder, entry.name):
                if (what := kind_of(folder / name)) is not None:
                    raise foreign(folder / name, what)
        elif entry.name in TRACKERS:
            expect_plain(folder, entry.name)
        elif re.fullmatch(TOP, entry.name) and (what := kind_of(entry)) is not None:
            raise foreign(entry, what)


def expect_plain(folder: Path, tracker: str) -> None:
    """Refuse a tracker's folder in which anything is neither a folder nor a plain file, W&B's own links aside: the
    tracker would write through it, or wait for it.
    """
    place = folder / tracker
    if (what := kind_of(place)) != "a folder":
        if what is not None or os.path.lexists(place):
            raise foreign(place, what or "a file")
        return
    left, seen = [place], 0
    while left:
        with os.scandir(left.pop()) as found:
            for path in (Path(entry.path) for entry in found):
                seen += 1
                if seen > MOST or len(path.parts) - len(place.parts) > DEEPEST:
                    what = f"{MOST:,} files" if seen > MOST else f"{DEEPEST} folders inside each other"
                    raise InputError(f"{place}: more than {what}; move it away, or take another --out")
                if (what := kind_of(path)) == "a folder":
                    left.append(path)
                elif what is not None and not (tracker == "wandb" and _own_link(place, path)):
                    raise foreign(path, what)


def _own_link(place: Path, path: Path) -> bool:
    """Whether a link is one that W&B makes."""
    if not path.is_symlink():
        return False
    name, target = path.relative_to(place).as_posix(), os.readlink(path)
    return any(re.fullmatch(own, name) and re.fullmatch(leads, target) for own, leads in LINKS.items())


def foreign(path: Path, what: str) -> InputError:
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
