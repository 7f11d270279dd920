"""Groups as jobs of Slurm, by submitit: each has one whole GPU, or one core of a CPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from fedproc.errors import InputError, RunError
from fedproc.simulation.workers.choice import Choice
from fedproc.simulation.workers.cluster import Cluster
from fedproc.simulation.workers.messages import Message
from fedproc.simulation.workers.node import train_group

AT_A_TIME = 16  # jobs where nobody says how many: Slurm's own queue says when each begins
MINUTES = 24 * 60  # a job is given; what is not done by then another continues


class SlurmJobs:
    """Slurm, as its commands on this machine reach it; with `local` as submitit's kind, processes here."""

    def __init__(self, cluster: Cluster, kind: str = "slurm") -> None:
        try:
            import submitit
        except ImportError as error:
            raise InputError(f"--cluster {cluster}: needs submitit: pip install 'fedproc[slurm]'") from error
        if kind == "slurm" and shutil.which("sbatch") is None:
            raise InputError(
                f"--cluster {cluster}: there is no sbatch here; run this command where Slurm's commands are"
            )
        self._submitit: Any = submitit
        self._cluster, self._kind = cluster, kind

    def choose(self, device: str, asked: int | None, runs: int) -> tuple[Choice, bool]:
        """As many jobs as were asked for; whether a GPU is to be had, Slurm does not say, so it must be named."""
        if device not in ("cpu", "cuda"):
            raise InputError(
                f"--device {device}: Slurm gives what it is asked for; expected cuda or cpu with --cluster slurm"
            )
        count = max(1, min(asked or AT_A_TIME, runs))
        self._on_gpu = device == "cuda"
        why = f"jobs of {self._cluster}, {'as requested' if asked else f'at most {AT_A_TIME} at a time'}"
        return Choice(count, why, (device,)), self._on_gpu

    def submit(self, order: Message) -> Any:
        executor = self._submitit.AutoExecutor(Path(order["folder"]) / "slurm", cluster=self._kind)
        executor.update_parameters(
            timeout_min=MINUTES, cpus_per_task=1, gpus_per_node=int(self._on_gpu), name="fedproc"
        )
        if self._cluster.address is not None and self._kind == "slurm":
            executor.update_parameters(slurm_partition=self._cluster.address)
        return executor.submit(train_group, order)

    def over(self, job: Any) -> str | None:
        if not job.done():
            return None
        error = job.exception()
        if error is None:
            return "ended"
        if isinstance(error, (InputError, RunError)):
            raise error
        return f"ended with {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"

    def cancel(self, job: Any) -> None:
        job.cancel()

    def close(self) -> None: ...
