"""A class of very few images is left out of what a client sends of its class means: the mean of one image is that
image's embedding.
"""

from __future__ import annotations

import torch

from fedproc.protocol.payload import Payload
from fedproc.protocol.postprocess import Postprocessor
from fedproc.protocol.task import Task


class SmallClasses(Postprocessor):
    """Of classes with fewer than `smallest` images, what is sent says that there are none."""

    def __init__(self, smallest: int) -> None:
        self.smallest = smallest

    def at_client(self, task: Task, payload: Payload) -> Payload:
        counts = payload.tensors.get("class_counts")
        if counts is None:
            return payload
        kept = counts >= self.smallest
        hidden = {}
        for name in ("class_means", "class_covariances", "class_counts"):
            if (tensor := payload.tensors.get(name)) is not None:
                mask = kept.view(-1, *(1,) * (tensor.dim() - 1))
                hidden[name] = torch.where(mask, tensor, torch.zeros_like(tensor))
        return Payload({**payload.tensors, **hidden}, payload.counts)
