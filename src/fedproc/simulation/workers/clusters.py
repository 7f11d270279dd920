"""The kinds of clusters there are."""

from __future__ import annotations

from typing import Protocol

from fedproc.simulation.workers.choice import Choice
from fedproc.simulation.workers.cluster import Cluster
from fedproc.simulation.workers.distant import Jobs


class ClusterJobs(Jobs, Protocol):
    """A connection to a cluster."""

    def choose(self, device: str, asked: int | None, runs: int) -> tuple[Choice, bool]:
        """How many jobs at a time for so many runs, and whether each has a GPU. What cannot be had is refused."""

    def close(self) -> None: ...


def connected(cluster: Cluster) -> ClusterJobs:
    """Find the cluster that a command names."""
    if cluster.kind == "ray":
        from fedproc.simulation.workers.ray_cluster import RayJobs

        return RayJobs(cluster)
    from fedproc.simulation.workers.slurm_cluster import SlurmJobs

    return SlurmJobs(cluster)
