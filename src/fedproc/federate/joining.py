"""What a server and a site tell each other before the first round, as JSON: who is invited to what, what images there
are, and what all have agreed upon. Answers come from other people's machines and are checked field by field.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedproc import __version__
from fedproc.protocol.codec import Message
from fedproc.protocol.guard import LARGEST_COUNT, Refused

MOST_CLASSES = 10_000
ClassName = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, lt=LARGEST_COUNT)]
Sum = Annotated[int, Field(ge=0, lt=1 << 62)]
RunName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,79}$")]  # names a folder at the site
Side = Annotated[int, Field(ge=1, le=4096)]
Channels = Annotated[int, Field(ge=1, le=3)]
Classes = Annotated[list[ClassName], Field(min_length=1, max_length=MOST_CLASSES)]


class Said(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Invitation(Said):
    """To a run: everything that its results depend on, except the images."""

    what: Literal["invitation"] = "invitation"
    version: str = __version__
    run: RunName
    experiment: dict[str, Any]
    plugin_sha256: str | None = None
    network_sha256: str | None = None
    classes: list[str] | None = None  # what may occur; None: whatever sites have


class Joined(Said):
    """A site takes part, and has these classes; its images are of that size and colour."""

    what: Literal["joined"] = "joined"
    version: str
    classes: Classes
    channels: Channels
    side: Side


class Look(Said):
    """How images are to be read: which classes there are, how large, in how many colours."""

    what: Literal["look"] = "look"
    run: RunName
    classes: Classes
    channels: Channels
    side: Side


class Seen(Said):
    """Sums over a site's training images, from which mean and deviation of all follow, and images of each class."""

    what: Literal["seen"] = "seen"
    sums: Annotated[list[Sum], Field(min_length=1, max_length=3)]
    squares: Annotated[list[Sum], Field(min_length=1, max_length=3)]
    pixels: Annotated[int, Field(gt=0, lt=1 << 62)]
    counts: Annotated[list[Count], Field(min_length=1, max_length=MOST_CLASSES)]


class Agreed(Said):
    """What all use, and which number the site has."""

    what: Literal["agreed"] = "agreed"
    run: RunName
    classes: Classes
    channels: Channels
    side: Side
    mean: list[float]
    std: list[float]
    client: int
    batch_size: Annotated[int, Field(ge=1, lt=LARGEST_COUNT)]
    epochs: Annotated[int, Field(ge=1, lt=LARGEST_COUNT)]


class Ready(Said):
    """A site can be given tasks; it trains on so many images."""

    what: Literal["ready"] = "ready"
    samples: Annotated[int, Field(gt=0, lt=LARGEST_COUNT)]


class Declined(Said):
    """A site takes no part, or cannot do what was asked, and says why."""

    what: Literal["declined"] = "declined"
    reason: Annotated[str, Field(max_length=2000)]


Model = TypeVar("Model", bound=Said)


def tell(said: Said) -> Message:
    return Message(said.model_dump_json().encode())


def kind_of(message: Message) -> str:
    """What a message is, as far as it says so."""
    try:
        found = json.loads(message.head)["what"]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise Refused("not a message of fedproc") from None
    return str(found)


def heard(message: Message, wanted: type[Model]) -> Model:
    """A message as what it should be; Refused says what it is instead."""
    try:
        if kind_of(message) == "declined":
            raise Refused(Declined.model_validate_json(message.head).reason)
        return wanted.model_validate_json(message.head)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"])) or "the message"
        raise Refused(f"{name}: {first['msg'][:200]}") from None
