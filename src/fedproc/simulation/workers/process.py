"""A worker as a process of this machine. A job of a cluster is another class with these methods (distant.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from fedproc.errors import InputError
from fedproc.files import kind_of
from fedproc.simulation.place import Place
from fedproc.simulation.workers.images import MappedImages
from fedproc.simulation.workers.messages import Lines, Message, encoded

LAST = 15  # lines of a log that are shown
CODE = """
import sys
sys.path[:] = sys.argv[3:]  # the driver's: the same source is run, and nothing that happens to be in this folder
from fedproc.simulation.workers.worker import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""


class Worker(Protocol):
    """Somebody who trains groups. Once `receive` has raised EOFError, `wait` says what became of it."""

    number: int
    pid: int
    one_group: bool  # whether it ends when its first group is done

    def fileno(self) -> int:
        """What can be waited for until there is something to receive."""

    def send(self, message: Message) -> None: ...

    def receive(self) -> list[Message]: ...

    def release(self) -> None:
        """There is nothing more to do: it ends by itself."""

    def stop(self) -> None:
        """Save, and end."""

    def kill(self) -> None: ...

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by then."""

    def fate(self) -> str:
        """How it ended."""

    def last_words(self) -> str:
        """What it printed in the end."""


class Process:
    """A worker of this machine, with a log of its own. It ends when this process does, in whatever way that happens."""

    one_group = False

    def __init__(self, number: int, log: Path, images: Sequence[MappedImages]) -> None:
        """It loads what it needs from now on, and waits to be told where to work."""
        self.number = number
        self.log = log
        self._images = images
        if (what := kind_of(log)) is not None or log.parent.is_symlink():
            raise InputError(f"{log}: {what or 'in a link'}, which is not followed; take another --out")
        ours, theirs = os.pipe()
        with log.open("ab") as output:
            self._log_began = output.tell()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-u", "-c", CODE, str(theirs), str(os.getpid()), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=[theirs, *(each.handle for each in images)],
                    start_new_session=True,  # Ctrl-C is the driver's, who passes it on
                )
            finally:
                os.close(theirs)
            stamp = datetime.now(UTC).isoformat(timespec="seconds")
            output.write(f"--- {stamp}: worker {self.number}, process {self._process.pid}\n".encode())
        os.set_blocking(ours, False)
        self._events, self._lines = ours, Lines()
        self.pid = self._process.pid

    def begin(self, place: Place, environment: Mapping[str, str | None]) -> None:
        """Say where it works, and what of the environment is different there (None: not set)."""
        images = [each.message() for each in self._images]
        self.send({"place": place.message(), "environment": dict(environment), "images": images})

    def fileno(self) -> int:
        return self._events

    def send(self, message: Message) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead, as `receive` will say
            self._process.stdin.write(encoded(message))
            self._process.stdin.flush()

    def receive(self) -> list[Message]:
        try:
            data = os.read(self._events, 1 << 20)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        return self._lines.feed(data)

    def release(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        self.release()
        return True

    def end(self) -> None:
        """At once, where it has not ended yet."""
        self.kill()
        self.wait(5.0)

    def fate(self) -> str:
        code = self._process.returncode
        if code is None:
            return "does not answer"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = " (by somebody, or for want of memory)" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"

    def last_words(self) -> str:
        return last_lines(self.log, self._log_began)


def last_lines(log: Path, began: int) -> str:
    """The end of what a worker printed to a log since it had so many bytes."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(began)
        lines = file.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LAST:])
