"""A request to stop, which is checked between rounds of work as well: the exception it raises may be swallowed by
whatever library it happens to strike.
"""

from __future__ import annotations


class Interrupt:
    """One command's; `request` may be called by a signal handler."""

    def __init__(self) -> None:
        self._requested = False

    def request(self) -> None:
        """Stop here, or where it is next checked."""
        self._requested = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Stop if that was requested."""
        if self._requested:
            raise KeyboardInterrupt
