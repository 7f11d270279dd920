"""A worker as a job of a cluster, for one group. What it says it writes to a file on the storage that nodes share."""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fedproc import __version__
from fedproc.errors import InputError, RunError, with_flags
from fedproc.simulation.place import Place
from fedproc.simulation.workers.messages import Lines, Message, encoded
from fedproc.simulation.workers.process import last_lines

LOOK_EVERY = 0.2  # seconds
ASK_EVERY = 5.0  # seconds between words for a job that still waits for its node


class Jobs(Protocol):
    """What a cluster does for us; a job is whatever it knows one by."""

    def submit(self, order: Message) -> Any: ...

    def over(self, job: Any) -> str | None:
        """How a job ended, or None while it waits or runs. An error that is not its runs' is raised."""

    def cancel(self, job: Any) -> None:
        """End it at once, wherever it is."""


class Job:
    """A worker that is submitted with its group, and ends with it."""

    one_group = True
    pid = 0  # another machine's

    def __init__(self, jobs: Jobs, place: Place, folder: Path, word: str) -> None:
        self.number = place.worker
        self._jobs, self._place, self._folder, self._word = jobs, place, folder, word
        self._log = folder / f"worker-{self.number}.log"
        self._log_began = self._log.stat().st_size if self._log.exists() else 0
        self._events = folder / f"job-{secrets.token_hex(6)}.jsonl"
        self._ours, self._theirs = os.pipe()
        os.set_blocking(self._ours, False)
        self._lines = Lines()
        self._job: Any = None
        self._fate: str | None = None
        self._ended = threading.Event()

    def fileno(self) -> int:
        return self._ours

    def send(self, message: Message) -> None:
        """Its group; it has no other."""
        order = {
            **message, "place": self._place.message(), "folder": str(self._folder.absolute()),
            "events": str(self._events.absolute()), "word": self._word, "version": __version__,
        }  # fmt: skip
        self._group = message["group"]
        self._job = self._jobs.submit(order)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        """Pass on what the job writes, until it is over."""
        read, waited = 0, time.monotonic()
        try:
            while True:
                fate = self._jobs.over(self._job)  # before reading: what it wrote is there then
                with suppress(FileNotFoundError), self._events.open("rb") as file:
                    file.seek(read)
                    if data := file.read():
                        read += len(data)
                        _write(self._theirs, data)
                if fate is not None:
                    self._fate = fate
                    return
                if not read and time.monotonic() - waited > ASK_EVERY:  # it waits for its turn
                    waited = time.monotonic()
                    _write(self._theirs, encoded({"event": "alive"}))
                time.sleep(LOOK_EVERY)
        except (InputError, RunError) as error:  # the node itself would refuse any group
            kind = "input" if isinstance(error, InputError) else "run"
            refused = {"event": "refused", "group": self._group, "kind": kind, "text": with_flags(error)}
            _write(self._theirs, encoded(refused))
        except BrokenPipeError:
            pass  # nobody listens any more
        finally:
            self._ended.set()
            os.close(self._theirs)

    def receive(self) -> list[Message]:
        try:
            data = os.read(self._ours, 1 << 20)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        return self._lines.feed(data)

    def release(self) -> None: ...

    def stop(self) -> None:
        self._events.with_suffix(".stop").touch()

    def kill(self) -> None:
        if self._job is not None:
            self._jobs.cancel(self._job)

    def wait(self, seconds: float) -> bool:
        if self._job is not None and not self._ended.wait(seconds):
            return False
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1
            for path in (self._events, self._events.with_suffix(".stop")):
                path.unlink(missing_ok=True)
        return True

    def fate(self) -> str:
        return self._fate or "does not answer"

    def last_words(self) -> str:
        return last_lines(self._log, self._log_began)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
