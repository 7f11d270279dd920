"""The job with Flower's simulation: python run_flower.py FOLDER ANSWER SUPERNODES.

One Ray actor a core with one torch thread each. A client normalises its images once, and trains in shuffled batches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable

import flower_client
import ray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job, answer, tested


class GivenCohorts(FedAvg):
    """FedAvg that asks the job's users, and notes when rounds end."""

    def __init__(self, job: Job) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.job = job
        self.ends: list[float] = []

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        cohort = self.job.cohorts[server_round - 1]
        while len(nodes := list(grid.get_node_ids())) < len(cohort):
            time.sleep(0.1)
        for user, node in zip(cohort, nodes, strict=False):
            asked = ConfigRecord({"folder": self.job.folder, "user": user})
            content = RecordDict({"arrays": arrays, "config": asked})
            yield Message(content, dst_node_id=node, message_type=MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        wrong = [reply.error.reason for reply in replies if reply.has_error()]
        if wrong or len(replies) != len(self.job.cohorts[server_round - 1]):
            raise RuntimeError(f"round {server_round}: {len(replies)} replies, {len(wrong)} with errors {wrong[:1]}")
        merged = super().aggregate_train(server_round, replies)
        self.ends.append(time.time())
        return merged


def main(folder: str, out: str, supernodes: str) -> None:
    job = Job.read(os.path.abspath(folder))
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy, network = GivenCohorts(job), job.network()
        result = strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=len(job.cohorts))
        network.load_state_dict(result.arrays.to_torch_state_dict())
        how = f"{ray.cluster_resources()['CPU']:.0f} Ray actors x 1 torch thread, {supernodes} supernodes"
        answer(out, ["flwr", "ray", "torch"], strategy.ends, tested(network, job), how)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, flower_client.app, int(supernodes), backend_config=resources)


if __name__ == "__main__":
    main(*sys.argv[1:])
