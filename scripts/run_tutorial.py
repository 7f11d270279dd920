"""Runs the commands of docs/tutorial.md in a folder of their own; puts what they print and draw into docs/.

Lines that begin with four spaces are commands; the block that follows them is their output.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "tutorial.md"
PICTURES = {"tutorial-partition.png": "pictures.png", "tutorial-curves.png": "runs/pictures/curves.png"}
SHOWN = re.compile(r"(?P<commands>(?:^    .*\n)+)\n```text\n(?P<output>(?:(?!```).*\n)*)```", re.M)
PROGRESS = re.compile(r"(\S+ +round +\d+/\d+|\d+ of \d+ rounds of \d+ runs) .*")


def commands(text: str) -> list[str]:
    """The commands whose output the page shows."""
    return [found["commands"] for found in SHOWN.finditer(text)]


def outputs(text: str) -> list[str]:
    """What the page says that they print."""
    return [found["output"] for found in SHOWN.finditer(text)]


def printed(commands: str, folder: Path) -> str:
    """What commands print, with lines of progress between the first and the last left out."""
    words = f'set -e\nfedproc() {{ "{sys.executable}" -m fedproc "$@"; }}\n{commands}'
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "encoding": "utf-8"}
    done = subprocess.run(["bash", "-c", words], cwd=folder, check=False, **how)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{commands}ended with {done.returncode}:\n{done.stdout}")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    lines = [line for line in lines if not line.startswith("Sources: ")]  # which depend on whose tree it is
    told = [place for place, line in enumerate(lines) if PROGRESS.fullmatch(line)]
    if len(told) > 2:
        lines[told[0] + 1 : told[-1]] = ["..."]
    return "".join(f"{line}\n" for line in lines)


def filled(text: str, found: list[str]) -> str:
    """The page with these outputs in its blocks."""
    left = iter(found)
    return SHOWN.sub(lambda block: f"{block['commands']}\n```text\n{next(left)}```", text)


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        found = []
        for block in commands(text):
            print(block, end="", flush=True)
            found.append(printed(block, Path(name)))
        PAGE.write_text(filled(text, found), encoding="utf-8")
        for picture, made in PICTURES.items():
            shutil.copy(Path(name, made), DOCS / "images" / picture)


if __name__ == "__main__":
    main()
