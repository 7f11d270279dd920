"""Groups as tasks of a Ray cluster: each has one whole GPU, or one core of a CPU, of any node.

Ray hands tasks to nodes and says when they end; it retries nothing. What a dead node leaves goes to another by the
supervisor, from the runs' checkpoints.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import threading
from typing import Any

from fedproc.errors import InputError, RunError
from fedproc.simulation.workers.choice import Choice
from fedproc.simulation.workers.cluster import Cluster
from fedproc.simulation.workers.messages import Message
from fedproc.simulation.workers.node import train_group

TOKEN = "RAY_AUTH_MODE"


class RayJobs:
    """A connection to a Ray cluster, until `close`."""

    def __init__(self, cluster: Cluster) -> None:
        # read by Ray in this process: no reports to its makers, and no endless repeating of what needs too much memory
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_task_oom_retries", "0")
        try:
            import ray
        except ImportError as error:
            raise InputError(f"--cluster {cluster}: needs Ray: pip install 'fedproc[ray]'") from error
        self._ray: Any = ray
        self.name = str(cluster)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=cluster.address or "auto", log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            how = "start one with `ray start --head`, or name its address as ray:HOST:PORT"
            raise InputError(f"--cluster {cluster}: no Ray cluster answers ({said}); {how}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray puts its own there, which saves nothing
        try:
            self._nodes = [node for node in ray.nodes() if node["Alive"]]
            here = all(ipaddress.ip_address(node["NodeManagerAddress"]).is_loopback for node in self._nodes)
            if os.environ.get(TOKEN) != "token" and not here:
                raise InputError(
                    f"--cluster {cluster}: without authentication whoever reaches its ports runs programs as you; set "
                    f"{TOKEN}=token for every `ray start` and for this command (`ray get-auth-token` has the token)"
                )
        except BaseException:
            self.close()
            raise

    def choose(self, device: str, asked: int | None, runs: int) -> tuple[Choice, bool]:
        """How many tasks at a time, each on its GPU or core, and whether it is a GPU."""
        if device not in ("auto", "cpu", "cuda"):
            raise InputError(f"--device {device}: a cluster says which GPU a task has; expected auto, cuda or cpu")
        gpus, cpus = self._room("GPU"), self._room("CPU")
        if device == "cuda" and not gpus:
            raise InputError(f"--device cuda: no node of {self.name} has a GPU and a core; expected cpu or auto there")
        on_gpu = gpus > 0 and device != "cpu"
        room, what = (gpus, "GPUs") if on_gpu else (cpus, "cores")
        if not room:
            raise InputError(f"--cluster {self.name}: has no node with a core to use")
        if asked is not None and asked > room:
            raise InputError(f"--workers {asked}: {self.name} has {room} {what} for tasks; expected at most that")
        count = max(1, min(asked or room, runs))
        nodes = len(self._nodes)
        why = f"{room} {what if room > 1 else what[:-1]} on {nodes} node{'s' if nodes > 1 else ''} of {self.name}"
        self._demand = {"num_gpus": 1 if on_gpu else 0, "num_cpus": 1}
        return Choice(count, why, ("cuda" if on_gpu else "cpu",)), on_gpu

    def _room(self, what: str) -> int:
        """GPUs or cores of which a task can have one, with a core beside it."""
        resources = [node["Resources"] for node in self._nodes]
        return sum(int(min(each.get(what, 0), each.get("CPU", 0))) for each in resources)

    def submit(self, order: Message) -> Any:
        task = self._ray.remote(max_calls=1, max_retries=0)(train_group)
        return task.options(**self._demand, scheduling_strategy="SPREAD").remote(order)

    def over(self, job: Any) -> str | None:
        ready, _ = self._ray.wait([job], timeout=0)
        if not ready:
            return None
        try:
            self._ray.get(job)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, (InputError, RunError)):
                raise cause from error
            return f"ended with {type(cause).__name__}: {cause}"
        except self._ray.exceptions.RayError as error:
            return f"was lost ({type(error).__name__})"
        return "ended"

    def cancel(self, job: Any) -> None:
        self._ray.cancel(job, force=True)

    def close(self) -> None:
        self._ray.shutdown()
