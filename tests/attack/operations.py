"""What a process does to the files of a folder, one operation after the other: to die at one of them, and to look at
their order.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.rename": "rename", "os.remove": "remove", "os.mkdir": "mkdir", "os.rmdir": "rmdir",
    "os.truncate": "truncate", "os.link": "link", "os.symlink": "symlink",
}  # fmt: skip
OPENED, HALF = "opened", "half written"  # all other operations are told of before they are done
TEMPORARY = ".tmp-"
HOOKS: list[Callable[[str, tuple[Any, ...]], None]] = []  # called by one of Python's own, which it never takes back


def _tell_all(event: str, given: tuple[Any, ...]) -> None:
    for hook in HOOKS:
        hook(event, given)


@cache
def _begin() -> None:
    sys.addaudithook(_tell_all)


class Operation(NamedTuple):
    """One operation, with what is needed to judge the order of all: names are below the watched folder."""

    what: str
    name: str
    target: str = ""  # of a rename
    sizes: tuple[tuple[str, int], ...] = ()  # of the file, or of those in the folder, at this moment
    folder: bool = False
    appends: bool = False


@contextmanager
def watched(folder: Path, act: Callable[[Operation], None]) -> Iterator[None]:
    """Call `act` at every operation of this process that changes something in the folder: before it opens for writing,
    renames, removes, makes or syncs; after it has opened a file for writing, which is empty then; and with half of a
    write on the disk.
    """
    top = os.path.abspath(folder)

    def name_of(path: Any, near: int = -1) -> str | None:
        """The path below the folder; None elsewhere, and for what is open already."""
        if isinstance(path, int):
            return None
        whole = os.path.join(os.readlink(f"/proc/self/fd/{near}") if near >= 0 else os.getcwd(), os.fsdecode(path))
        whole = os.path.normpath(whole)
        return os.path.relpath(whole, top) if whole == top or whole.startswith(top + os.sep) else None

    def sizes(name: str) -> tuple[tuple[str, int], ...]:
        path = Path(top, name)
        if path.is_dir():
            inside = sorted(each for each in path.rglob("*") if each.is_file())
            return tuple((os.path.relpath(each, top), each.stat().st_size) for each in inside)
        return ((name, path.stat().st_size),) if path.is_file() else ()

    def tell(what: str, name: str | None, target: str = "", appends: bool = False) -> None:
        if name is not None:
            act(Operation(what, name, target, sizes(name), os.path.isdir(os.path.join(top, name)), appends))

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[2], int) and given[2] & WRITING:
            tell("open", name_of(given[0]), appends=bool(given[2] & os.O_APPEND))
        elif event == "os.rename":
            tell("rename", name_of(given[0], given[2]), name_of(given[1], given[3]) or "")
        elif event in ("os.remove", "os.rmdir"):
            tell(CHANGES[event], name_of(given[0], given[1]))
        elif event == "os.mkdir":
            tell("mkdir", name_of(given[0], given[2]))
        elif event in CHANGES:
            tell(CHANGES[event], name_of(given[1 if event in ("os.link", "os.symlink") else 0]))

    real_open, real_os_open, real_sync = io.open, os.open, os.fsync

    def opening(*given: Any, **named: Any) -> Any:
        file = real_open(*given, **named)
        name = name_of(file.name) if file.writable() else None
        if name is not None:
            tell(OPENED, name)
            write = file.write

            def halving(content: Any) -> int:
                half = len(content) // 2
                write(content[:half])
                file.flush()
                tell(HALF, name)
                return half + int(write(content[half:]))

            file.write = halving
        return file

    def os_opening(path: Any, flags: int, *given: Any, **named: Any) -> int:
        handle = real_os_open(path, flags, *given, **named)
        if flags & WRITING:
            tell(OPENED, name_of(os.readlink(f"/proc/self/fd/{handle}")))
        return handle

    def syncing(file: Any) -> None:
        handle = file if isinstance(file, int) else file.fileno()
        tell("sync", name_of(os.readlink(f"/proc/self/fd/{handle}")))
        real_sync(file)

    io.open = builtins.open = opening  # type: ignore[assignment]
    os.open, os.fsync = os_opening, syncing  # type: ignore[assignment]
    HOOKS.append(hook)
    _begin()
    try:
        yield
    finally:
        HOOKS.remove(hook)
        io.open = builtins.open = real_open
        os.open, os.fsync = real_os_open, real_sync


def out_of_order(operations: Sequence[Operation], excepted: Callable[[str], bool] = lambda name: False) -> list[str]:
    """What a power failure could lose or leave half. Files are written beside their place, synced, renamed into it, and
    the folder is synced next; lines are appended and synced before anything else. `excepted`: files that nobody syncs.
    """
    synced: dict[str, int] = {}  # with the size then; folders have none
    wrong: list[str] = []
    moved = appended = ""  # what was renamed, and what was appended to, and is not safe yet
    for what, name, target, sizes, is_folder, appends in operations:
        if moved and (what, name) != ("sync", os.path.dirname(moved) or "."):
            wrong.append(f"{what} of {name} before the folder of {moved}, which was renamed, was synced")
        if appended and name != appended:
            wrong.append(f"{what} of {name} before {appended}, which was appended to, was synced")
            appended = ""
        moved = ""
        if what == "sync":
            synced[name] = 0 if is_folder else dict(sizes)[name]
            appended = ""
            continue
        if what == "open" and appends:
            appended = name
            if name in synced and dict(sizes).get(name, 0) != synced[name]:
                wrong.append(f"{name} was appended to after it was synced")
        elif what == "open" and not any(part.startswith(TEMPORARY) for part in name.split(os.sep)):
            wrong.append(f"{name} is written in its place, not beside it")
        if what == "rename" and not excepted(target):
            wrong += [f"{each} was renamed to {target}, not synced" for each, size in sizes if synced.get(each) != size]
            if is_folder and name not in synced:
                wrong.append(f"{name} was renamed to {target}, the folder not synced")
            moved = target
        content = synced.pop(name, None)
        if what == "rename" and not is_folder and content is not None:
            synced[target] = content
        if what not in (OPENED, HALF):  # names come or go
            for parent in {os.path.dirname(name), os.path.dirname(target or name)}:
                synced.pop(parent or ".", None)
    if moved:
        wrong.append(f"the folder of {moved}, which was renamed, was never synced")
    if appended:
        wrong.append(f"{appended}, which was appended to, was never synced")
    return wrong
