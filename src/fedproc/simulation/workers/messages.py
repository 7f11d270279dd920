"""What a driver and its workers say to each other: one JSON object a line.

To a worker: first its place and the images there are, then groups: each run's config and folder. From a worker:
`begun` (a group: where each run is), `update` (a run: its new rounds), `done` (a group), `refused` (a group: an error
that is not the worker's), and `alive`, every few seconds.
"""

from __future__ import annotations

import json
from typing import Any

Message = dict[str, Any]


def encoded(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Lines:
    """Messages out of bytes as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Message]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole]
