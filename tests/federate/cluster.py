"""A federation of real processes on this machine, each started as a person would."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import write_site

from fedproc.federate.kits import open_kit
from fedproc.federate.session import Session

psutil = pytest.importorskip("psutil")
pytest.importorskip("nvflare")
COMMAND = [sys.executable, "-m", "fedproc"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def fedproc(*words: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=seconds, env=quiet())


def quiet() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def until(what: Callable[[], Any], seconds: float = 60, pause: float = 0.1) -> Any:
    """Wait for something to be true; what it was is the error otherwise."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(pause)
    return found


class Running:
    """A command in the background, with what it printed."""

    def __init__(self, log: Path, *words: str, before: Sequence[str] = (), command: Sequence[str] = COMMAND) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*before, *command, *words], stdout=file, stderr=subprocess.STDOUT, env=quiet(), start_new_session=True
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def family(self) -> list[psutil.Process]:
        """The process and everything it started, however far down."""
        try:
            me = psutil.Process(self.process.pid)
            return [me, *me.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def find(self, word: str) -> psutil.Process | None:
        """The one of its processes with a word in its command line."""
        for process in self.family():
            with contextlib.suppress(psutil.Error):
                if any(word in part for part in process.cmdline()):
                    return process
        return None

    def kill(self) -> None:
        """kill -9 of all of it, at once."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
        self.kill()


class Cluster:
    """A server and sites in one folder."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self.names = folder, list(names)
        self.port = free_port()
        made = fedproc(
            "federate", "init", "--server", "localhost", "--port", str(self.port), "--sites", *names, "--out",
            str(folder / "kits"),
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        self.data = {name: write_site(folder / "images" / name, place) for place, name in enumerate(names)}
        self.sites: dict[str, Running] = {}
        self.server = self._server()

    def start_sites(self) -> None:
        for name in self.names:
            self.start_site(name)
        self.await_sites(self.names)

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def _server(self) -> Running:
        return Running(self.folder / "server.out", "federate", "server", str(self.kit("server")))

    def start_server(self) -> None:
        self.server = self._server()

    def start_site(self, name: str) -> None:
        self.sites[name] = Running(
            self.folder / f"{name}.out", "federate", "site", str(self.kit(name)), "--data", str(self.data[name]),
            "--device", "cpu", "--threads", "1",
        )  # fmt: skip

    def session(self) -> Session:
        return Session(open_kit(self.kit("admin"), "admin"))

    def await_sites(self, names: Sequence[str]) -> None:
        def there() -> bool:
            with contextlib.suppress(Exception), self.session() as session:
                return set(names) <= set(session.connected())
            return False

        until(there, 90, 0.5)

    def words(self, out: str, **given: Any) -> list[str]:
        base = {
            "rounds": 3, "epochs": 2, "batch_size": 8, "lr": 0.01, "min_sites": 1, "wait": 30,
            "timeout": 60, "preset": "paper", "fine_tune": 0,
        }  # fmt: skip
        flags = []
        for name, value in {**base, **given}.items():
            flag = f"--{name.replace('_', '-')}"
            more = value if isinstance(value, list | tuple) else []
            flags += [flag] if value is True else [flag, *more] if more else [f"{flag}={value}"]
        return ["federate", "start", str(self.kit("admin")), "--out", str(self.folder / out), *flags]

    def start(self, out: str, **given: Any) -> Running:
        return Running(self.folder / f"{out}.log", *self.words(out, **given))

    def run(self, out: str, **given: Any) -> str:
        done = fedproc(*self.words(out, **given))
        assert done.returncode == 0, done.stdout + done.stderr + self.server.said
        return done.stdout

    def close(self) -> None:
        for site in self.sites.values():
            site.stop()
        self.server.stop()


@contextlib.contextmanager
def cluster(folder: Path, names: Sequence[str]) -> Iterator[Cluster]:
    made = Cluster(folder, names)
    try:
        made.start_sites()
        yield made
    finally:
        made.close()
