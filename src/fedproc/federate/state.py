"""What a site keeps between rounds (a control variate, a previous model), on its own disk: a transaction that the
server's next task settles, and that survives the site's restart.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load, save

from fedproc.errors import RunError
from fedproc.files import naming, sweep, write_file
from fedproc.protocol.codec import Message
from fedproc.protocol.guard import Refused
from fedproc.protocol.payload import Tensors
from fedproc.site import OwnState

KEPT = 3  # trainings back that a server may return to


class DiskState(OwnState):
    """One file per round; the state is that of the round which the server accepted last."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        super().__init__()
        self._folder, self._device = folder, device
        self._round = -1
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)

    def commit(self, client: int, round_number: int, state: Tensors) -> None:
        """Write the state that a training ended in, before its answer leaves."""
        content = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
        digest = hashlib.sha256(content).digest()
        write_file(self._file(round_number), lambda path: path.write_bytes(digest + content))
        self._clean(round_number)

    def settle(self, last_accepted: int) -> None:
        """Go to the state of the round that was accepted last, whatever was trained since."""
        if last_accepted != self._round or self._state is None:
            self._state, self._round = self._read(last_accepted), last_accepted

    def _read(self, round_number: int) -> Tensors | None:
        path = self._file(round_number)
        if round_number < 0 or not path.exists():
            return None
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise RunError(f"{path}: the site's state is damaged; remove it to go on without")
        return {name: tensor.to(self._device) for name, tensor in load(content[32:]).items()}

    def _file(self, round_number: int) -> Path:
        return self._folder / f"round-{round_number:06d}.state"

    def _clean(self, round_number: int) -> None:
        """Keep the latest few and, whatever its age, the one that counts."""
        numbers = [int(path.stem.removeprefix("round-")) for path in self._folder.glob("round-*.state")]
        kept = {*sorted(number for number in numbers if number <= round_number)[-KEPT:], self._round}
        for number in set(numbers) - kept:
            self._file(number).unlink(missing_ok=True)


class Answered:
    """The answer to the last round of a run whose sites add noise: asked again, a site says the very same, for another
    draw of the noise would tell more of the same images.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "answered"

    def again(self, round_number: int) -> Message | None:
        """The answer to this round, if it was given; refused where a later one was."""
        try:
            found = self._file.read_bytes()
        except FileNotFoundError:
            return None
        told, head = (int.from_bytes(found[place : place + 8], "big") for place in (0, 8))
        if round_number < told:
            raise Refused(f"it has answered round {told + 1} of a private run, and answers none before it again")
        return Message(found[16 : 16 + head], found[16 + head :]) if round_number == told else None

    def keep(self, round_number: int, message: Message) -> None:
        """Write it down before it leaves."""
        sizes = b"".join(number.to_bytes(8, "big") for number in (round_number, len(message.head)))
        write_file(self._file, lambda path: path.write_bytes(sizes + message.head + message.body))


def expect_same_data(folder: Path, fingerprint: str) -> str | None:
    """Why a run cannot go on with these images, if it began with others."""
    path = folder / "data.json"
    if path.exists():
        began_with = json.loads(path.read_text(encoding="utf-8"))["fingerprint"]
        return None if began_with == fingerprint else "its images have changed since the run began"
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda temporary: temporary.write_text(json.dumps({"fingerprint": fingerprint}), encoding="utf-8"))
    return None
