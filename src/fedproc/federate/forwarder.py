"""The site's end of the wire: hands each message to the trainer on the same machine, and its answer back. NVFlare runs
it in a process of its own for each segment of a run; neither torch nor images are loaded there.
"""

from __future__ import annotations

import json
import os
import time
from multiprocessing.connection import Client, Connection

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from fedproc.federate.lifeline import end_with_parent
from fedproc.federate.names import BODY, HEAD, LARGEST_MESSAGE, SOCKET, TASK

PATIENCE = 60.0  # seconds until a trainer that is not there is given up
BEFORE_TASKS = ("invitation", "look", "agreed")
TRIES = 3  # how often a trainer may die of the same task


class TaskForwarder(Executor):  # type: ignore[misc]
    """Answers with return code OK even where something failed: the reason is in the answer, and others go on."""

    def __init__(self) -> None:
        super().__init__()
        self._connection: Connection | None = None
        self._agreements: dict[tuple[str, str], bytes] = {}  # what a trainer that is started again must hear first
        end_with_parent()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if task_name != TASK:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        head, body = bytes(shareable[HEAD]), shareable[BODY]
        answer = Shareable()
        try:
            answer[HEAD], answer[BODY] = self._ask(head, memoryview(body), abort_signal)
        except (OSError, EOFError) as error:
            answer[HEAD], answer[BODY] = _failure(f"its trainer does not answer: {error or 'it ended'}"), _array(b"")
        return answer

    def _ask(self, head: bytes, body: memoryview, abort_signal: Signal) -> tuple[bytes, np.ndarray]:
        """Ask the trainer; one that died is asked again when it is back, since asking twice gives the same answer."""
        for attempt in range(TRIES):
            try:
                there = self._connected(abort_signal)
                answer = _exchange(there, head, body, abort_signal)
                said = json.loads(head)
                if said["what"] in BEFORE_TASKS:
                    self._agreements[said["run"], said["what"]] = head
                return answer
            except (OSError, EOFError):
                self._drop()
                if abort_signal.triggered or attempt == TRIES - 1:
                    raise
        raise EOFError  # not reached

    def _connected(self, abort_signal: Signal) -> Connection:
        until = time.monotonic() + PATIENCE
        while self._connection is None:
            try:
                self._connection = Client(os.environ[SOCKET], family="AF_UNIX")
                for head in self._agreements.values():
                    _exchange(self._connection, head, memoryview(b""), abort_signal)
            except (OSError, EOFError):
                self._drop()
                if time.monotonic() > until or abort_signal.triggered:
                    raise
                time.sleep(0.2)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _exchange(there: Connection, head: bytes, body: memoryview, abort_signal: Signal) -> tuple[bytes, np.ndarray]:
    there.send_bytes(head)
    there.send_bytes(body)
    while not there.poll(0.2):
        if abort_signal.triggered:
            raise EOFError("the segment was ended")
    return there.recv_bytes(LARGEST_MESSAGE), _array(there.recv_bytes(LARGEST_MESSAGE))


def _array(content: bytes) -> np.ndarray:
    return np.frombuffer(content, dtype=np.uint8)


def _failure(reason: str) -> bytes:
    return json.dumps({"what": "declined", "reason": reason[:2000]}).encode()
