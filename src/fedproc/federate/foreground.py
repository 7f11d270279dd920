"""Commands in the foreground: they start a kit's processes, show its log, start again what dies, and end all of it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedproc.errors import InputError, RunError
from fedproc.federate.kits import Kit
from fedproc.federate.log import Tail, say
from fedproc.federate.names import SOCKET
from fedproc.runs.lock import Lock

LOOK = 0.2  # seconds between two looks
QUICK = 5.0  # a process that lives shorter than this fails quickly
MOST_QUICK = 5  # quick failures in a row after which it is given up
GRACE = 5.0  # seconds to end by itself


class Child:
    """A process of a kit that is started again when it ends."""

    def __init__(self, kit: Path, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        self._kit, self._name, self._command = kit, name, list(command)
        self._environment = environment
        self._quick = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._start()

    def _start(self) -> None:
        self._began = time.monotonic()
        with (self._kit / f"{self._name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                env=self._environment, start_new_session=True, cwd=self._kit,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def look(self) -> None:
        """Start it again if it has ended; one that keeps failing is the end of the command."""
        if self._process is None or self._process.poll() is None:
            return
        lived = time.monotonic() - self._began
        self._quick = self._quick + 1 if lived < QUICK else 0
        log = self._kit / f"{self._name}.log"
        if self._quick >= MOST_QUICK:
            raise RunError(f"the {self._name} process keeps failing; the end of {log}:\n{_end_of(log)}")
        say(self._kit, f"the {self._name} process ended ({_ended(self._process.returncode)}); starting it again")
        time.sleep(min(5.0, 0.2 * 2**self._quick))
        self._start()

    def end(self) -> None:
        """Ask it and all it started to end, and make them."""
        if self._process is None:
            return
        for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
                break
        if self._process.stdin is not None:
            self._process.stdin.close()


def _ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"


def _end_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
    return ""


def run_server(kit: Kit, plugins: Sequence[Path], show: Callable[[str], None], check: Callable[[], None]) -> None:
    """The server of a federation, until it is interrupted."""
    with _claimed(kit):
        _expect_free_port(kit)
        _place_storage(kit.path)
        show(f"server of the federation at {kit.host}, port {kit.port}; Ctrl-C ends it, runs continue when it is back")
        environment = {**os.environ, "FEDPROC_PLUGINS": os.pathsep.join(str(path.resolve()) for path in plugins)}
        node = [sys.executable, "-u", "-m", "fedproc.federate.node", "server", str(kit.path)]
        _watch(kit, [("server", node, environment)], show, check)


def run_site(
    kit: Kit,
    data: Path,
    device: str,
    plugins: Sequence[Path],
    threads: int | None,
    show: Callable[[str], None],
    check: Callable[[], None],
) -> None:
    """A site of a federation, until it is interrupted."""
    with _claimed(kit), tempfile.TemporaryDirectory(prefix="fedproc-") as short:
        address = str(Path(short) / "trainer")  # paths of sockets must be short
        show(f"site {kit.name} of the federation at {kit.host}, port {kit.port}; Ctrl-C ends it, it can come back")
        environment = {**os.environ, SOCKET: address}
        trainer = [
            sys.executable, "-u", "-m", "fedproc.federate.trainer", "--kit", str(kit.path), "--name", kit.name,
            "--data", str(data.resolve()), "--socket", address, "--device", device,
            *(word for path in plugins for word in ("--plugin", str(path.resolve()))),
            *(() if threads is None else ("--threads", str(threads))),
        ]  # fmt: skip
        node = [sys.executable, "-u", "-m", "fedproc.federate.node", "site", str(kit.path), "--name", kit.name]
        show(reach(kit))
        _watch(kit, [("trainer", trainer, environment), ("site", node, environment)], show, check)


def _watch(
    kit: Kit, commands: Sequence[tuple[str, list[str], dict[str, str]]], show: Callable[[str], None],
    check: Callable[[], None],
) -> None:  # fmt: skip
    tail = Tail(kit.path)
    children: list[Child] = []
    try:
        children = [Child(kit.path, name, command, environment) for name, command, environment in commands]
        (kit.path / "processes").write_text("\n".join(str(child.pid) for child in children) + "\n", encoding="utf-8")
        while True:
            check()
            for line in tail.lines():
                show(line)
            for child in children:
                child.look()
            time.sleep(LOOK)
    finally:
        for child in reversed(children):
            child.end()
        (kit.path / "processes").unlink(missing_ok=True)
        for line in tail.lines():
            show(line)
        tail.close()


@contextmanager
def _claimed(kit: Kit) -> Iterator[None]:
    """One process for a kit."""
    lock = Lock(kit.path)
    try:
        yield
    finally:
        lock.release()


def _expect_free_port(kit: Kit) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", kit.port))
        except OSError as error:
            reason = error.strerror or error
            raise RunError(f"port {kit.port}: cannot be listened on: {reason}; is another server running?") from error


def _place_storage(kit: Path) -> None:
    """Jobs and snapshots lie inside the kit, wherever that is now."""
    import json

    from fedproc.files import write_json

    path = kit / "local" / "resources.json"
    resources = json.loads(path.read_text(encoding="utf-8"))
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "jobs")
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "snapshots")
    write_json(path, resources)


def reach(kit: Kit, seconds: float = 5.0) -> str:
    """Try to reach the server with the kit's certificate, and say in words what comes of it."""
    where = f"{kit.host}:{kit.port}"
    context = ssl.create_default_context(cafile=str(kit.authority))
    context.load_cert_chain(kit.certificate, kit.certificate.with_suffix(".key"))
    try:
        with socket.create_connection((kit.host, kit.port), seconds) as plain:
            plain.settimeout(seconds)
            with context.wrap_socket(plain, server_hostname=kit.host) as secured:
                secured.settimeout(1.0)
                with contextlib.suppress(TimeoutError):
                    secured.recv(1)  # a refused certificate shows here
        return f"the server at {where} answers, and its certificate is our authority's"
    except ssl.SSLCertVerificationError as error:
        raise InputError(
            f"the server at {where} shows a certificate that is not our federation's ({error.verify_message}); "
            "is it another federation's, or has it moved to another name?"
        ) from error
    except ssl.SSLError as error:
        reason = f"the server at {where} refuses this kit's certificate ({error.reason})"
        raise InputError(f"{reason}; ask for a new kit") from error
    except socket.gaierror as error:
        raise InputError(f"{kit.host}: no such host: {error.strerror}; the kit was made for that name") from error
    except OSError as error:
        return f"the server at {where} cannot be reached yet ({error.strerror or error}); trying again until it can"
