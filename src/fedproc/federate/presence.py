"""When each site last connected to the server: one file per site in the server's kit. A segment knows by it that a site
was started anew, and so is no longer part of the segment.
"""

from __future__ import annotations

import time
from pathlib import Path

FOLDER = "connected"


def note_connected(kit: Path, site: str) -> None:
    """A site has connected just now."""
    folder = kit / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / site).write_text(f"{time.time()}\n", encoding="utf-8")


def connected_since(kit: Path, site: str) -> float:
    """When a site connected last, in seconds of this machine's clock; 0 if it never did."""
    try:
        return float((kit / FOLDER / site).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0
