"""Names of classes and sites as people write them: one spelling of accented letters, and names that look alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def normal(name: str) -> str:
    """The one spelling of a name: an accented letter is one character (NFC), whatever the file system made of it."""
    return unicodedata.normalize("NFC", readable(name))


def readable(name: str) -> str:
    """A name that can be printed and written; of a file whose bytes are no UTF-8, with marks in their place."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def alike(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of names that differ in nothing but case, spaces or the width of letters."""
    first: dict[str, str] = {}
    found = []
    for name in sorted(set(names)):
        plain = "".join(unicodedata.normalize("NFKC", name).casefold().split())
        if plain in first:
            found.append((first[plain], name))
        else:
            first[plain] = name
    return found
