"""Two-stage federated learning, the alpha table's baseline: features first, then the classifier alone."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from fedproc.methods import fedavg
from fedproc.methods.fedavg import Trains
from fedproc.methods.fedproc import PrototypeOptions, Prototypical


class Options(PrototypeOptions):
    split: float = Field(0.5, ge=0, le=1, description="share of the rounds that train features only")


class TwoStage(Prototypical):
    """The prototype loss alone; then encoder and head frozen, cross-entropy on the classifier."""

    name: ClassVar[str] = "two-stage"
    summary: ClassVar[str] = "prototype loss for half the rounds, then the classifier alone on frozen features"
    options_type: ClassVar[type[fedavg.Options]] = Options
    options: Options

    def depends_on_rounds(self) -> str | None:
        return f"the first {self.options.split:g} of all rounds is the first stage"

    def alpha(self, t: int) -> float:
        return 1.0 if t < self.options.split * self.problem.rounds else 0.0

    def trains(self, t: int) -> Trains:
        return "all" if self.alpha(t) else "classifier"
