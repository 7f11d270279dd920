"""Names that the parts of a federation know each other by."""

from __future__ import annotations

import importlib.util

from fedproc.errors import InputError

PROJECT = "fedproc"
ORGANISATION = "fedproc"
SERVER_NAME = "server"
ADMIN = "admin@fedproc.local"
CONTROLLER = "fedproc.federate.controller.RoundsController"
FORWARDER = "fedproc.federate.forwarder.TaskForwarder"

TASK = "fedproc"  # the one kind of task that NVFlare sees
HEAD, BODY = "head", "body"  # of a message: JSON, and tensors as safetensors
LARGEST_MESSAGE = 4 << 30  # bytes
TOPIC = "fedproc"  # of what is asked of a running job

RESULT = "fedproc"  # in what can be downloaded of a job: the run's folder without checkpoints
SOCKET = "FEDPROC_TRAINER"  # environment: where a site's trainer listens


def require_nvflare() -> None:
    """Say what to install where the extra is missing."""
    if importlib.util.find_spec("nvflare") is None:
        raise InputError("federate: NVIDIA FLARE is not installed here; pip install 'fedproc[federate]'")
