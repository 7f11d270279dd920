"""A cluster that is already there, as a command names it: what all kinds of it ask of the output folder."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproc.errors import InputError, RunError
from fedproc.runs.lock import Lock

KINDS = ("ray", "slurm")
RUNS = 12  # that a GPU trains together at most: more of them are several groups, which nodes take in turn
SEEN = "seen-by-nodes"  # a file by which nodes tell that they see the driver's folder
HANDOVER = 60.0  # seconds in which a process that was given up has let go of its folders
MOUNTS = Path("/proc/self/mountinfo")
NETWORK = ("nfs", "cifs", "smb", "lustre", "beegfs", "gpfs", "ceph", "gluster", "fuse", "9p", "afs", "pvfs", "orangefs")


@dataclass(frozen=True)
class Cluster:
    """Workers of a cluster instead of this machine's: at most so many at a time, or as many as it has room for."""

    kind: str
    address: str | None = None
    workers: int | None = None
    shared_lock: bool = False

    def __str__(self) -> str:
        return f"{self.kind}:{self.address}" if self.address else self.kind


def parsed(word: str, workers: int | str, shared_lock: bool) -> Cluster:
    """The value of --cluster, with those of --workers and --shared-lock."""
    kind, _, address = word.partition(":")
    if kind not in KINDS:
        raise InputError(f"--cluster {word}: expected ray, ray:ADDRESS, slurm or slurm:PARTITION")
    if kind == "ray" and address.startswith("//"):
        raise InputError(f"--cluster {word}: run this command on a node of the cluster, with --cluster ray")
    return Cluster(kind, address or None, workers if isinstance(workers, int) else None, shared_lock)


def expect_locks(folder: Path, shared_lock: bool, mounts: Path = MOUNTS) -> None:
    """Refuse a network file system, unless somebody says that locks hold on it: two writers in a run's folder would
    spoil it.
    """
    kind = file_system(folder, mounts)
    if kind.startswith(NETWORK) and not shared_lock:
        raise InputError(
            f"--out {folder}: lies on {kind}, where locks may not hold between machines; add --shared-lock if its "
            "flock() excludes processes of other nodes, as on NFS 4 and Lustre mounted with flock"
        )


def file_system(folder: Path, mounts: Path = MOUNTS) -> str:
    """The type of the file system that a folder is on, or will be; empty where the system does not say."""
    place = folder.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    place, best, kind = place.resolve(), -1, ""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        if place.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), after.split()[0]
    return kind


def show_folder(folder: Path) -> str:
    """Leave a word that nodes must find in the folder. Jobs of a driver that was killed are told to save and end, by
    what they write to being gone.
    """
    word = secrets.token_hex(8)
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("job-*"):
        left.unlink(missing_ok=True)
    (folder / SEEN).write_text(word)
    return word


def expect_seen(folder: Path, word: str, node: str) -> None:
    """Refuse a node that has another folder, or none, under the driver's path."""
    try:
        found = (folder / SEEN).read_text()
    except OSError:
        found = ""
    if found != word:
        raise InputError(
            f"--out {folder.parent}: node {node} does not see this folder; expected one that all nodes share"
        )


def wait_for_locks(folders: Sequence[Path], seconds: float = HANDOVER) -> None:
    """Wait until those who were at work in these folders are gone, as far as that does not take too long."""
    deadline = time.monotonic() + seconds
    for folder in folders:
        while os.path.isdir(folder):
            try:
                Lock(folder).release()
                break
            except RunError:
                if time.monotonic() > deadline:
                    return  # whoever takes the folder next says so
                time.sleep(0.5)
