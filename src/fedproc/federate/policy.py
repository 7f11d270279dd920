"""A site's own rules: policy.toml in its kit, which nobody else can change."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedproc.errors import InputError
from fedproc.experiment import Experiment
from fedproc.privacy.accountant import epsilon

FILE = "policy.toml"
TEXT = """\
# What this site lets a federation do with it. It is read when a run begins and before every answer.

# methods = ["fedproc", "fedavg"]  # these alone; left out: all methods of fedproc, and plugins that you installed
max_rounds = 1000                  # of a run
max_epochs = 100                   # of a round
smallest_class = 5                 # of a class with fewer training images no prototype is sent
# networks = ["my_module:Encoder"] # modules of your own that may be imported here; left out: none
diagnostics = true                 # class means that only serve the nearest-prototype accuracy may be sent
# max_epsilon = 8.0                # private runs alone, that promise no more than this each, with a delta of max_delta
# max_delta = 1e-5
# own_noise = 1.0                  # runs alone in which this site itself adds so much noise, in clip bounds
"""


class Policy(BaseModel):
    """What a site allows."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    methods: list[str] | None = None
    max_rounds: int = Field(default=1000, ge=1)
    max_epochs: int = Field(default=100, ge=1)
    smallest_class: int = Field(default=5, ge=1)
    diagnostics: bool = True
    networks: list[str] = Field(default_factory=list)
    max_epsilon: float | None = Field(default=None, gt=0)
    max_delta: float = Field(default=1e-5, gt=0, lt=1)
    own_noise: float = Field(default=0.0, ge=0)

    def objection(self, experiment: Experiment) -> str | None:
        """Why this site takes no part in an experiment, if it does not."""
        if self.methods is not None and experiment.method not in (*self.methods, "solo"):  # which is each one alone
            return f"its policy allows {', '.join(self.methods) or 'no method'}, not {experiment.method}"
        if ":" in experiment.network and experiment.network not in self.networks:
            return f"its policy names no network {experiment.network}, and only fedproc's own go without saying"
        if experiment.epochs > self.max_epochs:
            return f"its policy allows {self.max_epochs} epochs per round, not {experiment.epochs}"
        if experiment.rounds > self.max_rounds:
            return f"its policy allows {self.max_rounds} rounds, not {experiment.rounds}"
        if experiment.smallest_class < self.smallest_class:
            wanted, asked = self.smallest_class, experiment.smallest_class
            return f"its policy wants --smallest-class {wanted} or more, the run has {asked}"
        return self._objection_to_privacy(experiment)

    def _objection_to_privacy(self, experiment: Experiment) -> str | None:
        privacy = experiment.privacy
        wants = self.own_noise or self.max_epsilon is not None
        if wants and privacy is not None and not privacy.secure(federation=True):
            return "its policy wants noise that nobody can draw again, the run has --privacy.random seeded"
        if self.own_noise and (privacy is None or privacy.where == "server"):
            return f"its policy wants noise of {self.own_noise:g} on its own answers: --privacy.where client"
        if self.max_epsilon is None:
            return None
        if privacy is None:
            return f"its policy wants a private run: --privacy.epsilon {self.max_epsilon:g} or less"
        spent = privacy.epsilon
        if privacy.noise is not None:
            spent = epsilon(privacy.noise, experiment.sample, experiment.rounds, privacy.delta)
        if spent is None or spent > self.max_epsilon:
            return f"its policy wants epsilon {self.max_epsilon:g} at most, the run has {spent or 0.0:.2f}"
        if privacy.delta > self.max_delta:
            return f"its policy wants --privacy.delta {self.max_delta:g} at most, the run has {privacy.delta:g}"
        return None

    def objection_to_noise(self, noise: float) -> str | None:
        """Why this site does not answer with so little noise of its own, in clip bounds, if it does not."""
        if noise >= self.own_noise:
            return None
        return f"its policy wants noise of {self.own_noise:g} on its own answers, asked for {noise:.3g}"


def read_policy(kit: Path) -> Policy:
    """The policy of a kit; without a file, the defaults."""
    path = kit / FILE
    try:
        return Policy(**tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Policy.model_validate({})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        known = ", ".join(Policy.model_fields)
        hint = f"expected one of {known}" if first["type"] == "extra_forbidden" else first["msg"]
        raise InputError(f"{path}: {name} {first['input']!r}: {hint}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
