"""A wish to stop that cannot get lost: an exception may be swallowed by whatever library it happens to strike."""

from __future__ import annotations

_asked = False


def ask() -> None:
    """Stop here, or where it is next checked."""
    global _asked
    _asked = True
    raise KeyboardInterrupt


def check() -> None:
    """Stop if that was asked for."""
    if _asked:
        raise KeyboardInterrupt
