"""Clients' states between rounds (a control variate, a previous model), on the simulator's side.

It never enters the round loop or a payload, and changes only when a client's answer was accepted. The clients
that answered last are held in memory up to a limit, the others on disk, one file per client and round: a
checkpoint names the files it needs, and those that no checkpoint names are swept away.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedproc.errors import InputError, RunError, with_flags
from fedproc.files import read_bytes, sweep, write_file
from fedproc.runs.made import STATE
from fedproc.runs.schema import CheckpointFile, ClientFiles, read

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Holdings:
    """All clients' states between two rounds: in memory, or as files (name and SHA-256); and the round of each
    client's last accepted answer with the bytes of its state.
    """

    memory: Mapping[int, Tensors] = field(default_factory=dict)
    files: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    last: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def tensors(self) -> Tensors:
        """What is in memory, as `client/name`, for a checkpoint."""
        return {f"{client}/{name}": t for client, state in sorted(self.memory.items()) for name, t in state.items()}

    def values(self) -> dict[str, Any]:
        """The rest of a checkpoint: which files hold the other clients, and who answered when."""
        files = {str(client): list(self.files[client]) for client in sorted(self.files)}
        return {"files": files, "last": {str(client): list(self.last[client]) for client in sorted(self.last)}}

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], values: ClientFiles) -> Holdings:
        """What a checkpoint's tensors and values were made from."""
        memory: dict[int, Tensors] = {}
        for path, tensor in tensors.items():
            client, _, name = path.partition("/")
            memory.setdefault(int(client), {})[name] = tensor
        files = {int(client): (name, digest) for client, (name, digest) in values.files.items()}
        return cls(memory, files, {int(client): (number, size) for client, (number, size) in values.last.items()})


class ClientStates:
    """The holdings of the last whole round, and what was committed since; over `limit` bytes go to `folder`."""

    def __init__(self, limit: int, device: torch.device, folder: Path | None = None) -> None:
        self._limit = limit
        self._device = device
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._staged: dict[int, tuple[int, Tensors]] = {}
        self.holdings = Holdings()

    def place(self, folder: Path) -> None:
        """Where files go; a temporary folder if nowhere is said."""
        self._folder = folder

    def get(self, client: int) -> Tensors | None:
        """The client's state after the last whole round, or None before its first accepted answer."""
        if client in self.holdings.memory:
            return self.holdings.memory[client]
        if client not in self.holdings.files:
            return None
        content = _content(self._home(), client, *self.holdings.files[client])
        return {key: tensor.to(self._device) for key, tensor in load(content).items()}

    def latest(self, client: int) -> Tensors | None:
        """The client's state with what was accepted in this round."""
        return self._staged[client][1] if client in self._staged else self.get(client)

    def commit(self, client: int, round_number: int, state: Mapping[str, Tensor]) -> None:
        """Note a client's state after an accepted answer; it counts once the round is over."""
        if state:
            self._staged[client] = (round_number, {name: tensor.detach() for name, tensor in state.items()})

    def settled(self) -> Holdings:
        """The holdings with this round's commits, not yet adopted. What is over the limit goes to disk, the clients
        that answered longest ago first; which these are depends on who answered when, not on what is in memory.
        """
        now = self.holdings
        memory = {**now.memory, **{client: state for client, (_, state) in self._staged.items()}}
        files = {client: file for client, file in now.files.items() if client not in self._staged}
        sizes = {c: (number, sum(map(_bytes, state.values()))) for c, (number, state) in self._staged.items()}
        last = {**now.last, **sizes}
        used = 0
        for client in sorted(last, key=lambda c: (-last[c][0], c)):
            used += last[client][1]
            if used > self._limit and client in memory:
                files[client] = self._write(client, last[client][0], memory.pop(client))
        return Holdings(memory, files, last)

    def adopt(self, holdings: Holdings) -> None:
        """Go on from these holdings."""
        self.holdings = holdings
        self._staged = {}

    def _write(self, client: int, round_number: int, state: Tensors) -> tuple[str, str]:
        content = save({name: tensor.cpu().contiguous() for name, tensor in state.items()})
        name = f"client-{client:06d}-round-{round_number:06d}.safetensors"
        write_file(self._home() / name, lambda path: path.write_bytes(content))
        return name, hashlib.sha256(content).hexdigest()

    def _home(self) -> Path:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedproc-clients-")
            self._folder = Path(self._temporary.name)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def sweep(self, holdings: Holdings, checkpoints: Iterable[Path]) -> None:
        """Remove files that neither these holdings nor any of the checkpoints name."""
        if self._folder is None or not self._folder.is_dir():
            return
        sweep(self._folder, STATE)
        needed = {name for name, _ in holdings.files.values()}
        for path in checkpoints:
            try:
                index = read(path / "checkpoint.json", CheckpointFile)
            except InputError:
                continue  # a damaged one needs nothing
            needed |= {name for name, _ in index.values.clients.files.values()} if index is not None else set()
        for file in self._folder.iterdir():
            if file.name not in needed and re.fullmatch(STATE, file.name):
                file.unlink()
        if not any(self._folder.iterdir()):
            self._folder.rmdir()


def damage(folder: Path, values: ClientFiles) -> str | None:
    """What is wrong with the files that a checkpoint names, if anything."""
    for client, (name, digest) in values.files.items():
        try:
            _content(folder, int(client), name, digest)
        except RunError as error:
            return with_flags(error)
    return None


def _content(folder: Path, client: int, name: str, digest: str) -> bytes:
    """A client's state as it was written."""
    path = folder / name
    if not re.fullmatch(STATE, name):
        raise RunError(f"{folder}: {name} is no name of a client's state")
    try:
        content = read_bytes(path)
    except InputError as error:
        raise RunError(with_flags(error)) from error
    except OSError as error:
        raise RunError(f"{path}: the state of client {client} cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise RunError(f"{path}: the state of client {client} has a wrong checksum")
    return content


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
