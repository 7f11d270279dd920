"""A client of the Flower run: a module of its own, so that Ray's actors import it once and keep what it loads."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from job import Array, Job, Network
from torch import Tensor

app = ClientApp()


@cache
def holdings(folder: str) -> tuple[Job, Network, Array, Tensor]:
    """What an actor keeps between messages: the job, a network to load weights into, images and labels."""
    torch.set_num_threads(1)
    job = Job.read(folder)
    return job, job.network(), job.array("images"), torch.from_numpy(job.array("labels").copy())


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's round; the message says whose."""
    job, network, images, labels = holdings(str(message.content["config"]["folder"]))
    own = job.users[int(message.content["config"]["user"])]
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), job.lr, job.momentum, weight_decay=job.weight_decay)
    inputs, targets = job.normalised(images[own]), labels[own]
    for batch in torch.randperm(len(own)).split(job.batch_size):
        optimizer.zero_grad()
        F.cross_entropy(network(inputs[batch])[1], targets[batch]).backward()
        optimizer.step()
    arrays, metrics = ArrayRecord(network.state_dict()), MetricRecord({"num-examples": len(own)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
