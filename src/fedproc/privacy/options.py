"""What can be chosen of differential privacy: each field becomes --privacy.<option>."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedproc.given import no_truth, sentence

Where = Literal["server", "client"]
Random = Literal["auto", "seeded", "secure"]


class PrivacyOptions(BaseModel):
    """Differential privacy at the level of clients; it is on where an epsilon or a noise is given."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epsilon: float | None = Field(
        None, gt=0, description="budget of all rounds together; without a noise, the noise that keeps it is found"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="delta of that epsilon; well below 1/clients")
    noise: float | None = Field(
        None,
        ge=0,
        description="noise multiplier: deviation of the noise on the clients' sum, in clip bounds (default: the "
        "smallest that keeps --privacy.epsilon)",
    )
    where: Where = Field(
        "server", description="who adds the noise: the server to the sum, or each client its part of it"
    )
    clipping: Literal["fixed", "adaptive"] = Field(
        "fixed", description="the clip bound stays, or moves to a quantile of the clients' lengths (Andrew et al. 2021)"
    )
    clip: float = Field(
        1.0, gt=0, description="clip bound: the length that what a client sends may have; of adaptive the first one"
    )
    quantile: float = Field(
        0.5, gt=0, lt=1, description="share of the clients that adaptive clipping leaves as they are"
    )
    clip_rate: float = Field(0.2, gt=0, description="how fast the adaptive bound moves")
    count_noise: float | None = Field(
        None,
        gt=0,
        description="deviation of the noise on how many clients were not clipped, for adaptive (default: a twentieth "
        "of the expected cohort, no less than the noise multiplier)",
    )
    prototype_bound: float = Field(
        1.0, gt=0, description="length that a class mean may have; longer ones are shortened to it"
    )
    prototype_scale: float = Field(
        0.1, gt=0, description="length in the clipped vector of a class mean at its bound: how much of it is prototypes"
    )
    prototype_memory: float = Field(
        0.9, ge=0, lt=1, description="how much the noisy sums that prototypes are made of keep of earlier rounds"
    )
    returned_scale: float = Field(
        1.0, gt=0, description="scale in the clipped vector of what a method returns besides weights and prototypes"
    )
    random: Random = Field(
        "auto",
        description="where noise and cohorts come from: the seed, which makes runs repeatable and protects nobody who "
        "can guess it, or the system's secure source (auto: seeded in the simulator, secure in a federation)",
    )

    @model_validator(mode="after")
    def _on(self) -> PrivacyOptions:
        if self.epsilon is None and self.noise is None:
            raise ValueError("needs --privacy.epsilon, for example 8, or --privacy.noise")
        if self.epsilon is not None and self.noise == 0:
            raise ValueError(f"--privacy.noise 0: has no epsilon at all, and so not --privacy.epsilon {self.epsilon:g}")
        return self

    def secure(self, federation: bool) -> bool:
        """Whether noise and cohorts come from the system's secure source."""
        return federation if self.random == "auto" else self.random == "secure"


def options_of(given: Any) -> PrivacyOptions | None:
    """The options of a table as people give it; nothing in it: no privacy."""
    if isinstance(given, PrivacyOptions):
        return given
    if not isinstance(given, dict):
        raise ValueError(f"--privacy {given}: expected a table of options, for example --privacy.epsilon 8")
    values = {key.replace("-", "_"): value for key, value in given.items() if value is not None}
    if not values:
        return None
    no_truth(PrivacyOptions.model_fields, values, "privacy.")
    try:
        return PrivacyOptions(**values)
    except ValidationError as error:
        raise ValueError(sentence(error, PrivacyOptions.model_fields, "privacy")) from None
