"""Experiments that stand beside a federated one and show what it gained: each site alone, and each site going on by
itself from the model that all have trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.methods import fine_tuning

ALONE, FINE_TUNED = "alone", "fine-tuned"  # folders inside the federated run's
FINE_TUNING_EPOCHS = fine_tuning.EPOCHS
# of the federation, or of the choice of its model
LEFT_OUT = {
    "method", "plugin", "options", "merge", "server_step", "server_beta", "server_lr", "sample", "average_weights",
    "send_averaged", "ccvr", "privacy", "calibrate", "calibrate_prototypes", "keep", "patience", "target_accuracy",
    "merge_options", "attack", "attackers", "attack_strength",
}  # fmt: skip


@dataclass(frozen=True)
class Beside:
    """What stands beside runs whose clients are real sites: each site alone, and fine-tuned for so many epochs.
    `said` is how that was asked for, if it was.
    """

    alone: bool = True
    epochs: int = FINE_TUNING_EPOCHS
    said: str = ""

    @classmethod
    def asked(cls, alone: bool | None, fine_tune: int | None, off: str = "--no-alone") -> Beside:
        """With None as usual; `off` is how not to train alone is asked for."""
        if fine_tune is not None and fine_tune < 0:
            raise InputError(f"--fine-tune {fine_tune}: expected at least 0")
        said = f"--fine-tune {fine_tune}" if fine_tune is not None else off if alone is not None else ""
        epochs = FINE_TUNING_EPOCHS if fine_tune is None else fine_tune
        return cls(alone is not False, epochs, said)

    def expect_sites(self, experiments: Iterable[Experiment]) -> None:
        """Refuse what was asked for where no client is a real site."""
        kinds = dict.fromkeys(experiment.partition for experiment in experiments)
        if self.said and "natural" not in kinds:
            how = f"--partition {', '.join(kinds)} invents the clients"
            raise InputError(f"{self.said}: has no effect: it is for real sites, and {how}; leave it out")


NOTHING_BESIDE = Beside(alone=False, epochs=0)


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
