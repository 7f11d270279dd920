"""A segment of a federated run: what it is asked for, what carries its messages, how it ends, and how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from fedproc.beside import FINE_TUNING_EPOCHS
from fedproc.protocol.codec import Message

Record = dict[str, Any]
Outcome = Literal["finished", "diverged", "failed", "ended", "stopped", "too few sites"]

REFUSALS = 50  # that are kept to be shown


class Options(BaseModel):
    """What a run over the network is asked for beside its experiment."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_sites: int = Field(default=2, ge=1, description="fewest good answers that make a round")
    timeout: int = Field(default=600, ge=1, description="seconds until a site that does not answer is left out")
    join_timeout: int = Field(default=120, ge=1, description="seconds that sites have to read their images")
    classes: list[str] | None = Field(default=None, description="class names that may occur; None: what sites have")
    server_test: str | None = Field(default=None, description="folder on the server with test images by class")
    alone: bool = Field(default=True, description="also let each site train alone, to show what it gained")
    fine_tune: int = Field(
        default=FINE_TUNING_EPOCHS,
        ge=0,
        description="epochs of each site from the trained model on, beside it; 0: none",
    )

    following: frozenset[str] = Field(
        default=frozenset(), description="what follows the sites' images, since nobody has set it"
    )


class Wire(Protocol):
    """Carries messages to sites and their answers back."""

    def sites(self) -> Sequence[str]:
        """Those that can be asked in this segment."""

    def ask(self, messages: Mapping[str, Message], seconds: int, take: Callable[[str, Message | str], None]) -> None:
        """Send each site its message and hand on what each answers, or why nothing came, as it arrives."""

    def restarted(self, site: str) -> bool:
        """Whether a site has connected anew since the segment began."""

    def ended(self) -> bool:
        """Whether the segment was cut short from outside."""


class Ended(Exception):
    """The segment ends here; the run goes on in the next."""


class TooFew(Exception):
    """Too few sites answer."""


@dataclass
class SiteStatus:
    """A site as it is shown."""

    state: str = "invited"
    reason: str = ""
    samples: int = 0
    accuracy: float | None = None
    answered: int = 0  # the round of its last good answer
    seconds: float = 0.0  # that its last answer took


@dataclass
class Status:
    """How far a segment is, for whoever asks while it runs."""

    run: str
    method: str
    rounds: int
    round: int = 0
    doing: str = "inviting sites"
    sites: dict[str, SiteStatus] = field(default_factory=dict)
    refusals: list[Record] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)  # who said no before the rounds
    notes: list[str] = field(default_factory=list)  # of the run, to be said once to whoever watches
    result: Record | None = None
    outcome: str = ""


class Segment:
    """Who is there in a segment and who is not, how far it is, and whether it shall end; several threads look at it."""

    def __init__(
        self, members: Sequence[str], options: Options, wire: Wire, say: Callable[[str], None], status: Status
    ) -> None:
        self.options, self.wire, self.say, self.status = options, wire, say, status
        self.sites = [name for name in members if name in set(wire.sites())]
        self.away = {name: "not connected" for name in members if name not in self.sites}
        self.lock = threading.RLock()
        self.stopped = False
        self._ends = self._now = False
        status.sites = {name: SiteStatus() for name in members}

    def end(self, stop: bool, now: bool) -> None:
        """Let the segment end after the round at hand, or `now`; or the run, until somebody starts it again."""
        self.stopped, self._now = self.stopped or stop, self._now or now
        self._ends = True

    def check_ended(self, between_rounds: bool = False) -> None:
        if self.wire.ended() or self._now or (between_rounds and self._ends):
            raise Ended

    def there(self) -> list[str]:
        return [site for site in self.sites if site not in self.away]

    def expect(self, count: int, what: str, needed: int) -> None:
        if count < needed:
            raise TooFew(f"{count} sites {what}, fewer than --min-sites {needed}")

    def leave_out(self, site: str, reason: str) -> None:
        """Do without a site until the next segment."""
        self.say(f"site {site} is left out: {reason}")
        with self.lock:
            self.away[site] = reason
            self.note_refusal(site, reason)

    def note_refusal(self, site: str, reason: str, round_number: int = 0) -> None:
        with self.lock:
            self.status.refusals.append({"site": site, "round": round_number, "reason": reason})
            del self.status.refusals[:-REFUSALS]

    def shown(self) -> Record:
        """The status as JSON can hold it."""
        with self.lock:
            sites = {name: dict(vars(site)) for name, site in self.status.sites.items()}
            for name, reason in self.away.items():
                sites[name] |= {"state": "away", "reason": reason, "anew": self.wire.restarted(name)}
            return {**vars(self.status), "sites": sites, "refusals": self.status.refusals[-20:]}
