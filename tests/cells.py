"""Code run as a notebook runs its cells: in one namespace, with its source known to Python."""

from __future__ import annotations

import hashlib
import linecache
from typing import Any


def cell(source: str, space: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a cell; returns the names there are then."""
    space = {"__name__": "__main__"} if space is None else space
    name = f"/tmp/cells/{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)
    return space
