"""Where numbers come from: versions, machine, device, and how the work was laid out."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fedproc import __version__
from fedproc.runs.schema import EnvironmentFile, SourcesBefore

SOURCES = (".py", ".c", ".css", ".js")
DIRTY = "-dirty"  # as git describes a tree with uncommitted changes
PACKAGES = ("torch", "numpy", "pillow", "pydantic", "safetensors")


def environment(device: torch.device, executor: str, lanes: int, threads: int, precision: str) -> dict[str, Any]:
    """What environment.json holds. Executor, lanes and threads are read back when a run continues."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "device": str(device),
        "device_name": name,
        "executor": executor,
        "lanes": lanes,
        "threads": threads,
        "precision": precision,
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {"fedproc": __version__, **{package: _version(package) for package in PACKAGES}},
        "commit": _commit(),
        "source_sha256": source_hash(),
    }


@dataclass(frozen=True)
class Origin:
    """A state of the sources that numbers come from, as far as their environment.json tells."""

    commit: str | None
    sources: str | None  # their hash; runs of the first format have none

    @property
    def changed(self) -> bool:
        """Whether the tree had uncommitted changes."""
        return self.commit is not None and self.commit.endswith(DIRTY)

    @property
    def clean(self) -> bool:
        return self.commit is not None and not self.changed

    @property
    def name(self) -> str:
        """The commit, or the sources' hash where it is unknown, in seven digits."""
        if self.commit is not None:
            return self.commit[:7]
        return f"sources {self.sources[:7]}" if self.sources else ""

    def __str__(self) -> str:
        if self.commit is None:
            return "unknown commit" + (f" ({self.name})" if self.name else "")
        return self.name + (" (changed tree)" if self.changed else "")


def origins(environment: Mapping[str, Any]) -> tuple[Origin, ...]:
    """All states of the sources that a run was trained with, the first one first."""
    records = [*environment.get("earlier", []), environment]
    return tuple(dict.fromkeys(Origin(each.get("commit"), each.get("source_sha256")) for each in records))


def earlier(before: EnvironmentFile, now: Mapping[str, Any]) -> list[dict[str, str | None]]:
    """What goes on record of the sources that a run had so far, when it is continued with those of `now`."""
    last = SourcesBefore(commit=before.commit, source_sha256=before.source_sha256)
    had = [{"commit": each.commit, "source_sha256": each.source_sha256} for each in (*before.earlier, last)]
    return [each for each in had if each["source_sha256"] != now["source_sha256"]]


@lru_cache(maxsize=1)
def source_hash() -> str:
    """The SHA-256 over all source files of the package: it tells one state of a tree from another, committed or not."""
    return hash_of(Path(__file__).resolve().parent.parent)


def hash_of(package: Path) -> str:
    """The SHA-256 over a package's source files, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in SOURCES:
            digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # imported from a folder, not installed
        return None


def _commit() -> str | None:
    """The commit of the source tree, where the package runs from its own."""
    here = Path(__file__).resolve().parent.parent
    top = _git(here, "rev-parse", "--show-toplevel")
    if top is None or Path(top) / "src" / "fedproc" != here:
        return None
    return _git(here, "describe", "--always", f"--dirty={DIRTY}", "--abbrev=40", "--exclude=*")


def _git(where: Path, *words: str) -> str | None:
    try:
        found = subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
