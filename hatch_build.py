"""README for the package index: links and pictures of the repository become absolute.

They lead to the place that `[project.urls] Repository` in pyproject.toml names, and that is the one place to change.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|#|mailto:)(?P<path>[^)\s]+)\)")


def absolute(text: str, repository: str, revision: str) -> str:
    """Markdown whose links to files lead to a revision of the repository; pictures to the files themselves."""

    def led(found: re.Match[str]) -> str:
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{found['text']}]({repository}/{kind}/{revision}/{found['path']})"

    return LINK.sub(led, text)


class Readme(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        made = absolute(text, metadata["urls"]["Repository"].rstrip("/"), f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": made}
