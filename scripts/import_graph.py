#!/usr/bin/env python3
"""Draw which rooms of src/fedproc import which, into docs/architecture.md, and refuse a circle.

    python scripts/import_graph.py [--check]

A room is a folder of src/fedproc or a module beside them. `--check` changes nothing and fails where the page is out of
date. Imports that only type checkers see, and those of the package's own `__init__`, do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, PAGE = ROOT / "src" / "fedproc", ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- imports: made by scripts/import_graph.py -->", "<!-- end of imports -->"


def imported(path: Path) -> Iterator[str]:
    """The modules of fedproc that a file imports, wherever in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("fedproc."))
        elif isinstance(node, ast.ImportFrom) and node.module == "fedproc":
            yield from (f"fedproc.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedproc."):
            yield node.module or ""


def room_of(module: str) -> str | None:
    name = module.split(".")[1]
    return name if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file() else None


def graph() -> dict[str, set[str]]:
    """Each room with those it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        wanted = {room for module in imported(path) if (room := room_of(module)) is not None}
        found.setdefault(parts[0], set()).update(wanted - {parts[0]})
    return found


def layers(rooms: dict[str, set[str]]) -> list[list[str]]:
    """Rooms by how far they stand above those that import nothing; a circle is an error."""
    left, placed = dict(rooms), []
    done: set[str] = set()
    while left:
        ready = sorted(room for room, wanted in left.items() if wanted <= done)
        if not ready:
            raise SystemExit(f"import_graph: a circle among {', '.join(sorted(left))}")
        placed.append(ready)
        done |= set(ready)
        for room in ready:
            del left[room]
    return placed


def drawn(rooms: dict[str, set[str]]) -> str:
    """The layers, top first, each room with what it imports directly."""
    width = max(map(len, rooms))
    lines = []
    for layer in reversed(layers(rooms)):
        lines += [f"{room:{width}}  {' '.join(sorted(rooms[room]))}".rstrip() for room in layer]
        lines.append("")
    return "\n".join(["```", *lines[:-1], "```"])


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}\n{drawn(graph())}\n{END}{after}"
    if "--check" in sys.argv:
        raise SystemExit("docs/architecture.md: run scripts/import_graph.py" if new != text else 0)
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
