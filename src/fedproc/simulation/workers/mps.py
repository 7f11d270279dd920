"""A private MPS daemon: with it kernels of several processes run on a GPU at the same time, without it in turns.

    python mps.py guard PIPES LOGS

The daemon is started and ended by a guard, a process that does nothing else: it waits on its standard input, which ends
with the driver in whatever way that ends. Nobody else's daemon is touched. This module imports nothing of fedproc or
torch, so that the guard is there at once.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS, VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"
THIS = [sys.executable, "-P", __file__]
LONGEST = 70  # characters of a folder for sockets, whose whole path may have 107
READY = "ready"


class NoDaemon(Exception):
    """Why there is no MPS daemon."""


class Daemon:
    """A private daemon, until `close`; `wait` sees whether it works. `environment` is what workers have different."""

    def __init__(self, folder: Path) -> None:
        """Its logs go into the folder, and its sockets where their names are not too long."""
        if shutil.which(CONTROL) is None:
            raise NoDaemon(f"there is no {CONTROL}")
        self._logs = folder / "mps"
        inside = (folder / "pipes").absolute()
        short = len(str(inside)) <= LONGEST
        self._pipes = inside if short else Path(tempfile.mkdtemp(prefix="fedproc-mps-"))
        for made in (self._logs, self._pipes):
            made.mkdir(parents=True, exist_ok=True)
        words = [*THIS, "guard", str(self._pipes), str(self._logs.absolute())]
        self._guard = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.environment: dict[str, str | None] = {VISIBLE: None, PIPES: str(self._pipes)}

    def wait(self) -> None:
        """Until it works. One that does not is ended."""
        said = _line(self._guard, 90.0)
        if said != READY:
            self.close()
            raise NoDaemon(said or "its guard did not answer")

    def close(self) -> None:
        """End it: the guard does, as soon as its input ends."""
        assert self._guard.stdin is not None and self._guard.stdout is not None
        self._guard.stdin.close()
        try:
            self._guard.wait(30.0)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        self._guard.stdout.close()


def given() -> bool:
    """Whether the environment names a daemon that is somebody else's to start and end."""
    return PIPES in os.environ


def works(environment: Mapping[str, str]) -> str | None:
    """None where a CUDA program with this environment becomes a client of an MPS server, else why not."""
    words = [*THIS, "probe"]
    probe = subprocess.Popen(words, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert probe.stdin is not None and probe.stdout is not None
    try:
        said = _line(probe, 60.0)
        if said != READY:
            return said or "a CUDA program that allocates memory did not end well"
        servers = [line for line in _asked("get_server_list", environment).split() if line.isdigit()]
        return None if servers else "a CUDA program ran without becoming a client of its server"
    finally:
        probe.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            probe.wait(20.0)
        if probe.poll() is None:
            probe.kill()
            probe.wait()
        probe.stdout.close()


def client_environment(pipes: Path) -> dict[str, str]:
    """A client's. A daemon that sees some GPUs numbers them anew, so its clients see all that it does."""
    return {**{name: value for name, value in os.environ.items() if name != VISIBLE}, PIPES: str(pipes)}


def _line(process: subprocess.Popen[str], seconds: float) -> str:
    """The line that a process says, or nothing."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline().strip() if ready else ""


def _asked(command: str, environment: Mapping[str, str]) -> str:
    try:
        found = subprocess.run(
            [CONTROL], input=command + "\n", env=dict(environment), capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout


def guard(pipes: Path, logs: Path) -> None:
    """Start the daemon, say whether it works, and end it when the input ends."""
    environment = {**os.environ, PIPES: str(pipes), LOGS: str(logs)}
    try:
        try:
            with (logs / "start.log").open("wb") as log:  # a pipe would stay open as long as the daemon lives
                begun = subprocess.run(
                    [CONTROL, "-d"], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=30
                )
            said = " ".join((logs / "start.log").read_text(errors="replace").split())
            reason = None if begun.returncode == 0 else f"it ended with {begun.returncode}: {said[:200]}"
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = str(error)
        reason = reason or works({**client_environment(pipes), LOGS: str(logs)})
        with suppress(BrokenPipeError):
            print(reason or READY, flush=True)
        sys.stdin.read()
    finally:
        _end(pipes, environment)
        shutil.rmtree(pipes, ignore_errors=True)


def _end(pipes: Path, environment: Mapping[str, str]) -> None:
    """Ask the daemon to quit, and insist."""
    try:
        pid = int((pipes / f"{CONTROL}.pid").read_text())
    except (OSError, ValueError):
        pid = 0
    _asked("quit", environment)
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            if pid and number:
                os.kill(pid, number)
        for _ in range(50):
            if not pid or not _alive(pid):
                return
            time.sleep(0.1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def probe() -> None:
    """Be a CUDA program: a context, some memory, something written to it. Then wait for the end of the input."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(f"libcuda.so.1 cannot be loaded: {error}", flush=True)
        return
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    size = ctypes.c_size_t(1 << 20)
    calls = (
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), device)),
        ("cuCtxSetCurrent", (context,)),
        ("cuMemAlloc_v2", (ctypes.byref(memory), size)),
        ("cuMemsetD8_v2", (memory, ctypes.c_ubyte(1), size)),
        ("cuCtxSynchronize", ()),
    )
    for name, words in calls:
        code = getattr(cuda, name)(*words)
        if code:
            print(f"{name} of a CUDA program under it failed with error {code}", flush=True)
            return
    print(READY, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    guard(Path(sys.argv[2]), Path(sys.argv[3])) if sys.argv[1] == "guard" else probe()
