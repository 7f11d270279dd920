"""The two places where privacy and compression act: between what a client computed and what it sends, and between the
sum of the clients' answers and the server step.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Task


class Postprocessor:
    """Does nothing in either place; override the half, or both, that is wanted. `quiet`: nothing leaves a client but
    its payload, neither how long it took nor why it failed.
    """

    quiet = False

    def at_client(self, task: Task, payload: Payload) -> Payload:
        """What is sent of what the client computed; names, shapes and dtypes are those that the server expects."""
        return payload

    def at_server(self, start: Tensor, merged: Tensor, round_number: int) -> Tensor:
        """What the server step sees of the merged parameters (P,), which set out from `start`."""
        return merged


def send(chain: Sequence[Postprocessor], task: Task, payload: Payload) -> Payload:
    """The client's half of all of them, in order."""
    for each in chain:
        payload = each.at_client(task, payload)
    return payload


def receive(chain: Sequence[Postprocessor], start: Tensor, merged: Tensor, round_number: int) -> Tensor:
    """The server's half of all of them, in order."""
    for each in chain:
        merged = each.at_server(start, merged, round_number)
    return merged
