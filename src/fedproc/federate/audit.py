"""What left a site: one line per message, with the names, shapes and counts of all that was in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedproc.protocol.payload import Payload

FILE = "audit.jsonl"


def note(kit: Path, run: str, what: str, round_number: int | None, said: Mapping[str, object], size: int) -> None:
    """Append a line and sync it: it is there before the message leaves."""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run": run,
        "what": what,
        **({"round": round_number + 1} if round_number is not None else {}),
        **said,
        "bytes": size,
    }
    handle = os.open(kit / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
        os.fsync(handle)
    finally:
        os.close(handle)


def contents(payload: Payload) -> dict[str, Any]:
    """What a payload holds, without its values."""
    shapes = {
        name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in payload.tensors.items()
    }
    return {"tensors": shapes, "counts": dict(payload.counts)}
