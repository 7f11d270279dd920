"""The job with Apple's pfl: torchrun --nproc-per-node N run_pfl.py FOLDER ANSWER.

As pfl's own CIFAR-10 benchmark sets it up: every user's images normalised once, in memory, in fixed order.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from itertools import chain

import torch
import torch.nn.functional as F
from job import Job, Network, answer, tested
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor


class Model(Network):
    """The network with the two methods that pfl calls."""

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self(images)[1], labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor, eval: bool = True) -> dict[str, Weighted]:
        self.train(not eval)
        right = (self(images)[1].argmax(dim=1) == labels).sum().item()
        return {"accuracy": Weighted(right, len(labels))}


class Clock(TrainingProcessCallback):
    """Notes when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.ends.append(time.time())
        return False, Metrics()


def main(folder: str, out: str) -> None:
    job, clock = Job.read(folder), Clock()
    images, labels = job.array("images"), torch.from_numpy(job.array("labels").copy())
    data = [(job.normalised(images[own]).to(job.device), labels[own].to(job.device)) for own in job.users]
    order = chain.from_iterable(job.cohorts)
    users = FederatedDataset.from_slices(data, lambda: next(order))
    network = Model(job.classes)
    network.load_state_dict(job.network().state_dict())
    network.to(job.device)
    sgd = partial(torch.optim.SGD, momentum=job.momentum, weight_decay=job.weight_decay)
    model = PyTorchModel(network, sgd, torch.optim.SGD(network.parameters(), 1.0))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=len(job.cohorts),
            evaluation_frequency=len(job.cohorts),  # in the first round alone
            train_cohort_size=len(job.cohorts[0]),
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(users, users, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch_size
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    distributed = get_framework_module().distributed
    if distributed.global_rank == 0:
        how = f"{job.device}, {distributed.world_size} processes x {torch.get_num_threads()} torch threads"
        answer(out, ["pfl", "torch"], clock.ends, tested(network.cpu(), job), how)


if __name__ == "__main__":
    main(*sys.argv[1:])
