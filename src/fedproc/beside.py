"""Experiments that stand beside a federated one and show what it gained: each site alone, and each site going on by
itself from the model that all have trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedproc.experiment import Experiment

ALONE, FINE_TUNED = "alone", "fine-tuned"  # folders inside the federated run's
FINE_TUNING_EPOCHS = 10
# of the federation, or of the choice of its model
LEFT_OUT = {
    "method", "plugin", "options", "merge", "server_step", "server_beta", "server_lr", "sample", "average_weights",
    "send_averaged", "ccvr", "privacy", "calibrate", "calibrate_prototypes", "keep", "patience", "target_accuracy",
}  # fmt: skip


def alone(experiment: Experiment, rounds: int) -> Experiment:
    """Each site on its own images alone: the same initial weights, network and training, as many epochs as all rounds
    that the federated one had.
    """
    return _solo(experiment, {"epochs": rounds * experiment.epochs, "start": "same"})


def fine_tuned(experiment: Experiment, model: Path, epochs: int) -> Experiment:
    """Each site from the federated model on, on its own images, epoch by epoch."""
    rest = {"start_from": model, "epochs": 1, "eval_every": epochs}
    return _solo(experiment, {"epochs": epochs, "start": "same"}, **rest)


def _solo(experiment: Experiment, options: dict[str, Any], **more: Any) -> Experiment:
    names = set(Experiment.model_fields) - LEFT_OUT
    kept = {name: getattr(experiment, name) for name in names} | {"calibrate": 0.0}
    if experiment.keep == "best":  # then the federated model meets the test images, and so do these
        kept["predictions"] = "test"
    return Experiment(experiment.own, **{**kept, **more, "method": "solo", "solo": options})
