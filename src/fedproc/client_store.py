"""What clients keep between rounds (a control variate, a previous model), on the driver's side.

It never enters the round loop or a payload, and changes only when a client's answer was accepted. The clients
that answered last are held in memory up to a limit, the others on disk, one file a client and round: a
checkpoint names the files it needs, and those that no checkpoint names are swept away.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedproc.errors import RunError
from fedproc.runs.atomic import sweep, write_file

Kept = dict[str, Tensor]


class ClientStore:
    """Named tensors a client; more than `limit` bytes of them go to files in `folder`."""

    def __init__(self, limit: int, device: torch.device, folder: Path | None = None) -> None:
        self._limit = limit
        self._device = device
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._staged: dict[int, tuple[int, Kept]] = {}
        self._memory: dict[int, Kept] = {}
        self._files: dict[int, tuple[str, str]] = {}  # name and SHA-256
        self._last: dict[int, tuple[int, int]] = {}  # the round of each client's last accepted answer, and its bytes

    def place(self, folder: Path) -> None:
        """Where files go; a temporary folder if nowhere is said."""
        self._folder = folder

    def get(self, client: int) -> Kept | None:
        """What the client kept, or None before its first accepted answer."""
        if client in self._memory:
            return self._memory[client]
        if client not in self._files:
            return None
        name, digest = self._files[client]
        path = self._home() / name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path}: what client {client} kept cannot be read: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise RunError(f"{path}: what client {client} kept has a wrong checksum; --fresh starts over")
        return {key: tensor.to(self._device) for key, tensor in load(content).items()}

    def commit(self, client: int, round_number: int, kept: Mapping[str, Tensor]) -> None:
        """Note what a client keeps after an accepted answer; it counts once the round is over."""
        if not kept:
            return
        self._staged[client] = (round_number, {name: tensor.detach() for name, tensor in kept.items()})

    def settle(self) -> None:
        """With the round over, what was committed in it counts. What is over the limit goes to disk, the clients
        that answered longest ago first; which these are depends on who answered when, not on what is in memory.
        """
        for client, (round_number, kept) in self._staged.items():
            self._memory[client] = kept
            self._files.pop(client, None)
            self._last[client] = (round_number, sum(t.numel() * t.element_size() for t in kept.values()))
        self._staged.clear()
        used = 0
        for client in sorted(self._last, key=lambda c: (-self._last[c][0], c)):
            used += self._last[client][1]
            if used > self._limit and client in self._memory:
                self._write(client)

    def _write(self, client: int) -> None:
        content = save({name: tensor.cpu().contiguous() for name, tensor in self._memory.pop(client).items()})
        name = f"client-{client:06d}-round-{self._last[client][0]:06d}.safetensors"
        write_file(self._home() / name, lambda path: path.write_bytes(content))
        self._files[client] = (name, hashlib.sha256(content).hexdigest())

    def _home(self) -> Path:
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fedproc-clients-")
            self._folder = Path(self._temporary.name)
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def tensors(self) -> dict[str, Tensor]:
        """What is in memory, as `client/name`, for a checkpoint."""
        return {f"{client}/{name}": t for client, kept in sorted(self._memory.items()) for name, t in kept.items()}

    def values(self) -> dict[str, Any]:
        """The rest of a checkpoint: which files hold the other clients, and who answered when."""
        files = {str(client): list(self._files[client]) for client in sorted(self._files)}
        return {"files": files, "last": {str(client): list(self._last[client]) for client in sorted(self._last)}}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self._memory, self._files = {}, {int(c): (name, digest) for c, (name, digest) in values["files"].items()}
        self._last = {int(client): (number, size) for client, (number, size) in values["last"].items()}
        for path, tensor in tensors.items():
            client, _, name = path.partition("/")
            self._memory.setdefault(int(client), {})[name] = tensor

    def sweep(self, checkpoints: Iterable[Path]) -> None:
        """Remove files that neither the present nor any of the checkpoints names."""
        if self._folder is None or not self._folder.is_dir():
            return
        sweep(self._folder)
        needed = {name for name, _ in self._files.values()}
        for path in checkpoints:
            try:
                index = json.loads((path / "checkpoint.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # a damaged one needs nothing
            needed |= {name for name, _ in index["values"].get("clients", {}).get("files", {}).values()}
        for file in self._folder.iterdir():
            if file.name not in needed:
                file.unlink()
        if not needed:
            self._folder.rmdir()
