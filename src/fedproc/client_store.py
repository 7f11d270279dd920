"""What clients keep between rounds (a control variate, a previous model), on the driver's side.

It never enters the round loop or a payload, and changes only when a client's answer was accepted.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class ClientStore:
    """Named tensors a client, in memory."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Tensor]] = {}

    def get(self, client: int) -> Mapping[str, Tensor] | None:
        """What the client kept, or None before its first accepted answer."""
        return self._kept.get(client)

    def commit(self, client: int, kept: Mapping[str, Tensor]) -> None:
        if kept:
            self._kept[client] = {name: tensor.detach().clone() for name, tensor in kept.items()}

    def tensors(self) -> dict[str, Tensor]:
        """All of it as `client/name`, for a checkpoint."""
        return {f"{client}/{name}": t for client, kept in sorted(self._kept.items()) for name, t in kept.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        self._kept.clear()
        for path, tensor in tensors.items():
            client, _, name = path.partition("/")
            self._kept.setdefault(int(client), {})[name] = tensor
