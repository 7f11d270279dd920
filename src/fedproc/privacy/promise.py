"""What a private run promises: its noise, and epsilon after so many rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from fedproc.errors import InputError
from fedproc.privacy import accountant
from fedproc.privacy.options import PrivacyOptions

COUNT_SHARE = 1 / 20  # of the expected cohort: the deviation of the noise on the count, as Andrew et al. have it


@dataclass(frozen=True)
class Promise:
    """Of a run of `rounds` rounds in which each of `clients` takes part with probability `rate`."""

    options: PrivacyOptions
    rate: float
    clients: int
    rounds: int

    @property
    def cohort(self) -> float:
        """How many clients are expected in a round: what sums are divided by, however many there are."""
        return self.rate * self.clients

    @cached_property
    def noise(self) -> float:
        """The noise multiplier of everything that is released in a round, as the accountant sees it."""
        o = self.options
        if o.noise is None:
            assert o.epsilon is not None
            return accountant.noise_for(o.epsilon, self.rate, self.rounds, o.delta)
        if o.epsilon is not None and (spent := self.epsilon_after(self.rounds)) > o.epsilon:
            raise InputError(
                f"--privacy.epsilon {o.epsilon:g}: {self.rounds} rounds with --privacy.noise {o.noise:g} spend "
                f"{spent:.2f}; take more noise or fewer --rounds"
            )
        return o.noise

    @cached_property
    def count_noise(self) -> float:
        """The deviation of the noise on the sum of the clients' +-1/2 for unclipped and clipped."""
        given = self.options.count_noise
        found = max(COUNT_SHARE * self.cohort, self.noise) if given is None else given
        if 2 * found <= self.noise:
            raise InputError(
                f"--privacy.count-noise {found:g}: expected more than half of the noise multiplier {self.noise:g}, "
                "or the count alone spends all of it"
            )
        return found

    @cached_property
    def update_noise(self) -> float:
        """The noise multiplier of the clipped vectors: a little more than that of all, where a count is released, too,
        whose sensitivity is 1/2: z^-2 = update^-2 + (2 count)^-2.
        """
        if self.options.clipping == "fixed" or self.noise == 0:
            return self.noise
        return 1 / math.sqrt(self.noise**-2 - (2 * self.count_noise) ** -2)

    def checked(self) -> Promise:
        """The promise, once its noise has been found; refused if there is none that keeps it."""
        _ = self.noise, self.update_noise
        return self

    def epsilon_after(self, rounds: int) -> float:
        """Infinite without noise."""
        noise = self.options.noise if self.options.noise is not None else self.noise
        return accountant.epsilon(noise, self.rate, rounds, self.options.delta)

    def epsilon_of_one_answer(self) -> float:
        """With noise of the clients': what the server, which sees each answer and knows who was asked, learns at most,
        of a client that is asked in every round.
        """
        own = self.noise / math.sqrt(max(1, self.clients))
        return accountant.epsilon(own, 1.0, self.rounds, self.options.delta)

    def depends_on_rounds(self) -> str | None:
        """Why rounds cannot be added, if they cannot."""
        o = self.options
        if o.epsilon is not None and o.noise is None:
            return f"its noise keeps --privacy.epsilon {o.epsilon:g} over exactly so many rounds"
        return None

    def words(self) -> list[str]:
        """What is said of it before the run."""
        o, spent = self.options, self.epsilon_after(self.rounds)
        if not self.noise:
            return ["privacy: no noise, so nothing is promised (epsilon is infinite)"]
        often = (
            "all clients in every round" if self.rate == 1 else f"each client in a round with probability {self.rate:g}"
        )
        bound = f"clip bound {o.clip:g}" + (" to begin with" if o.clipping == "adaptive" else "")
        lines = [
            f"privacy: epsilon {spent:.2f} at delta {o.delta:g} for adding or removing one client, over {self.rounds} "
            f"rounds, {often} (expected {self.cohort:g}); noise multiplier {self.noise:.4g}, {bound}, noise of the "
            f"{o.where}"
        ]
        if o.where == "client":
            lines.append(
                "privacy: the server itself sees each answer, with noise of "
                f"{self.noise / math.sqrt(max(1, self.clients)):.3g} clip bounds on it: against the server epsilon is "
                f"{self.epsilon_of_one_answer():,.0f} of a client asked in every round"
            )
        if self.rate == 1:
            lines.append("privacy: with all clients in every round nothing hides among the others' absence")
        if o.delta * self.clients >= 1:
            lines.append(f"privacy: delta {o.delta:g} is no less than 1/{self.clients}, one client's share: take less")
        return lines
