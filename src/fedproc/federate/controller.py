"""The server's end of the wire: NVFlare runs it in a process of its own for each segment of a run."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import ClientTask, TaskCompletionStatus
from nvflare.apis.controller_spec import Task as FlareTask
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedproc.beside import ALONE, FINE_TUNED
from fedproc.errors import InputError, RunError
from fedproc.experiment import Experiment
from fedproc.federate.driver import Driver
from fedproc.federate.lifeline import end_with_parent
from fedproc.federate.log import say
from fedproc.federate.names import BODY, HEAD, LARGEST_MESSAGE, RESULT, TASK, TOPIC
from fedproc.federate.presence import connected_since
from fedproc.federate.segment import Options
from fedproc.federate.server_run import AGREED
from fedproc.files import write_json
from fedproc.protocol.codec import Message

CHECK = 0.05  # seconds between two looks at what has come in
RUNS = "runs"  # in the server's kit: the runs' folders, with their checkpoints

LARGEST_HEAD = 16 << 20  # bytes


class RoundsController(Controller):  # type: ignore[misc]
    """Plays one segment of a run, and answers questions about it."""

    def __init__(self, run: str, experiment: dict[str, Any], options: dict[str, Any], members: list[str]) -> None:
        super().__init__(task_check_period=CHECK)
        self._run, self._config, self._options, self._members = run, experiment, options, members
        self._driver: Driver | None = None
        self._error = ""
        self._ends: dict[str, bool] = {}

    def start_controller(self, fl_ctx: FLContext) -> None:
        self._engine.register_app_command(TOPIC, self._command)

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(self, *late: object) -> None:
        """An answer that came after its time; it is dropped."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        workspace = fl_ctx.get_engine().get_workspace()
        kit = Path(workspace.get_root_dir())
        end_with_parent()
        home = kit / RUNS
        try:
            experiment = Experiment(**{**self._config, "plugin": _plugins()})
            wire = FlareWire(self, fl_ctx, abort_signal, kit, lambda: self._ends.get("now", False))
            options = Options(**self._options)
            speak = lambda text: say(kit, f"{self._run}: {text}")  # noqa: E731
            self._driver = Driver(home, self._run, experiment, options, self._members, wire, speak)
            if self._ends:  # somebody was quick
                self._driver.end(**self._ends)
            outcome = self._driver.play()
            say(kit, f"{self._run}: {outcome}")
        except (InputError, RunError) as error:
            self._error = str(error)
            say(kit, f"{self._run}: stopped: {error}")
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            say(kit, f"{self._run}: stopped: {self._error}")
            raise
        finally:
            if not abort_signal.triggered:
                self._deliver(home, Path(workspace.get_run_dir(fl_ctx.get_job_id())) / RESULT)

    def _deliver(self, home: Path, target: Path) -> None:
        """Put the run's folder, and those of the runs beside it, where they can be downloaded from."""
        ignored = shutil.ignore_patterns("checkpoint", ".tmp-*", ".lock*")
        beside = [
            (found[-1].parent.name, target / kind)
            for kind in (ALONE, FINE_TUNED)
            if (found := sorted(home.glob(f"{self._run}-{kind}-*/config.json"), key=lambda path: path.stat().st_mtime))
        ]
        for name, place in [(self._run, target), *beside]:
            if (home / name).is_dir():
                shutil.copytree(home / name, place, dirs_exist_ok=True, ignore=ignored)
                shutil.copyfile(home / f"{name}{AGREED}", place / "federation.json")
        target.mkdir(exist_ok=True)
        write_json(target / "status.json", self._said(0))

    def _said(self, since: int) -> dict[str, Any]:
        if self._driver is None:
            return {"run": self._run, "error": self._error}
        return {**self._driver.shown(since), "error": self._error}

    def _command(self, topic: str, asked: dict[str, Any] | None, fl_ctx: FLContext) -> dict[str, Any]:
        """What `fedproc federate start` and `status` ask a running segment."""
        asked = asked or {}
        if asked.get("do") in ("end", "stop"):
            self._ends = {"stop": asked["do"] == "stop", "now": bool(asked.get("now"))}
            if self._driver is not None:
                self._driver.end(**self._ends)
        return self._said(int(asked.get("since", 0)))


class FlareWire:
    """Messages as NVFlare's tasks, one for each site."""

    def __init__(
        self, controller: Controller, fl_ctx: FLContext, abort_signal: Signal, kit: Path, hurried: Callable[[], bool]
    ) -> None:
        self._controller, self._fl_ctx, self._abort, self._kit = controller, fl_ctx, abort_signal, kit
        self.hurried = hurried  # whether the segment is to end at once
        self._began = time.time()
        self._names = [client.name for client in fl_ctx.get_engine().get_clients()]

    def sites(self) -> Sequence[str]:
        return self._names

    def ended(self) -> bool:
        return bool(self._abort.triggered)

    def ask(self, messages: Mapping[str, Message], seconds: int, take: Callable[[str, Message | str], None]) -> None:
        arrived: dict[str, Message | str] = {}
        lock = threading.Lock()
        bodies: dict[int, Any] = {}
        tasks: dict[str, FlareTask] = {}
        for site, message in messages.items():
            data = Shareable()
            data[HEAD] = message.head
            data[BODY] = bodies.setdefault(id(message.body), np.frombuffer(message.body, dtype=np.uint8))

            def received(client_task: ClientTask, fl_ctx: FLContext, site: str = site) -> None:
                answer = _message(client_task.result)
                client_task.result = None
                with lock:
                    arrived[site] = answer

            tasks[site] = FlareTask(name=TASK, data=data, timeout=seconds, result_received_cb=received)
            self._controller.send(tasks[site], self._fl_ctx, targets=[site])
        waiting = set(messages)
        until = time.monotonic() + seconds + 5
        while waiting and not self.ended() and not self.hurried():
            with lock:
                ready = {site: arrived.pop(site) for site in list(arrived)}
            for site, answer in ready.items():
                waiting.discard(site)
                take(site, answer)
            for site in list(waiting):
                status = tasks[site].completion_status
                if status is not None or time.monotonic() > until or self.restarted(site):
                    with lock:
                        late = arrived.pop(site, None)
                    waiting.discard(site)
                    take(site, late if late is not None else self._silence(site, status, seconds))
            if waiting:
                time.sleep(CHECK / 2)
        if self.ended() or self.hurried():
            self._controller.cancel_all_tasks()

    def restarted(self, site: str) -> bool:
        """Whether a site has connected since the segment began: then its part in the segment is gone."""
        return connected_since(self._kit, site) > self._began

    def _silence(self, site: str, status: object, seconds: int) -> str:
        """Why a site has not answered."""
        if self.restarted(site):
            return "it was started anew"
        if self._controller.communicator.get_client_disconnect_time(site) is not None:
            return "it has gone"
        if status not in (None, TaskCompletionStatus.TIMEOUT, TaskCompletionStatus.OK):
            return "its task was cancelled"
        return f"no answer within {seconds} s"


def _message(result: object) -> Message | str:
    """What a site's process sent, if it is a message at all."""
    if not isinstance(result, Shareable) or HEAD not in result or BODY not in result:
        code = result.get_return_code() if isinstance(result, Shareable) else "nothing"
        return f"its process answered {code}"
    head, body = result[HEAD], result[BODY]
    if not isinstance(head, bytes) or not isinstance(body, np.ndarray) or body.dtype != np.uint8:
        return "its process answered something else than a message"
    if len(head) > LARGEST_HEAD:
        return f"an answer with a head of {len(head):,} bytes, expected at most {LARGEST_HEAD:,}"
    if len(head) + body.nbytes > LARGEST_MESSAGE:
        return f"an answer of {len(head) + body.nbytes:,} bytes, expected at most {LARGEST_MESSAGE:,}"
    return Message(head, body.tobytes())


def _plugins() -> list[Path]:
    """The plugins that the server's person installed."""
    return [Path(word) for word in os.environ.get("FEDPROC_PLUGINS", "").split(os.pathsep) if word]
