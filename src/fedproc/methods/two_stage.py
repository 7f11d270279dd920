"""Two-stage federated learning, the alpha table's baseline: features first, then the classifier alone."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from fedproc.methods import method
from fedproc.methods.fedproc import PrototypeOptions, Prototypical
from fedproc.protocol.task import Phase


class Options(PrototypeOptions):
    split: float = Field(0.5, ge=0, le=1, description="share of the rounds that train features only")


class TwoStage(Prototypical):
    """The prototype loss alone; then encoder and head frozen, cross-entropy on the classifier."""

    name: ClassVar[str] = "two-stage"
    summary: ClassVar[str] = "prototype loss for half the rounds, then the classifier alone on frozen features"
    options_type: ClassVar[type[method.Options]] = Options
    options: Options

    def depends_on_rounds(self) -> str | None:
        return f"the first {self.options.split:g} of all rounds is the first stage"

    def alpha(self, t: int) -> float:
        return 1.0 if t < self.options.split * self.server.rounds else 0.0

    def phases(self, t: int) -> tuple[Phase, ...]:
        whole = super().phases(t)
        return whole if self.alpha(t) else tuple(replace(phase, trains="classifier") for phase in whole)
