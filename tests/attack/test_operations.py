"""The order of file operations: what the checks of the attacks find, and what they let pass."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from operations import HALF, OPENED, Operation, out_of_order, watched
from tally import Tally

from fedproc.files import _sync, write_file, write_folder
from fedproc.runs.lines import append_line


def seen(folder: Path, act: Callable[[], object]) -> list[Operation]:
    found: list[Operation] = []
    with watched(folder, found.append):
        act()
    return found


def fill(path: Path) -> None:
    path.write_text("twelve words")


def test_what_fedproc_writes_is_in_order(tmp_path: Path) -> None:
    def act() -> None:
        write_file(tmp_path / "a", fill)
        write_folder(tmp_path / "b" / "c", lambda folder: fill(folder / "d"), lambda path: None)
        append_line(tmp_path / "e", {"round": 1}, "")
        append_line(tmp_path / "e", {"round": 2}, "")

    found = seen(tmp_path, act)
    assert out_of_order(found) == []
    names = [each[:2] for each in found[:7]]
    first = [("remove", ".tmp-a"), ("open", ".tmp-a"), (OPENED, ".tmp-a"), (HALF, ".tmp-a"), ("sync", ".tmp-a")]
    assert names == [*first, ("rename", ".tmp-a"), ("sync", ".")]
    assert [dict(each.sizes)[".tmp-a"] for each in found[2:5]] == [0, 6, 12]


def _in_place(path: Path) -> None:
    fill(path / "a")


def _renamed(path: Path, *synced: str, after: str = "") -> None:
    fill(path / ".tmp-a")
    for name in synced:
        _sync(path / name)
    if after:
        (path / ".tmp-a").open("a").close()
    os.replace(path / ".tmp-a", path / "a")


def _appended(path: Path, again: bool) -> None:
    with (path / "a").open("a") as file:
        file.write("line\n")
        if again:
            os.fsync(file.fileno())  # without a flush: half a line is there
    if again:
        append_line(path / "a", {"round": 2}, "")
    else:
        write_file(path / "b", fill)


@pytest.mark.parametrize(
    ("act", "what"),
    [
        (_in_place, "a is written in its place, not beside it"),
        (lambda path: _renamed(path), ".tmp-a was renamed to a, not synced"),
        (lambda path: _renamed(path, ".tmp-a"), "the folder of a, which was renamed, was never synced"),
        (lambda path: _renamed(path, ".tmp-a", after="more"), ".tmp-a was renamed to a, not synced"),
        (lambda path: _appended(path, False), "remove of .tmp-b before a, which was appended to, was synced"),
        (lambda path: _appended(path, True), "a was appended to after it was synced"),
    ],
)
def test_what_is_not_in_order_is_found(act: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    assert what in out_of_order(seen(tmp_path, lambda: act(tmp_path)))


def test_a_refusal_is_a_problem_where_a_run_must_go_on() -> None:
    tally = Tally("kill")
    tally.count("refused: damaged")
    assert not tally.problems
    tally.count("refused: damaged", may_refuse=False)
    assert tally.problems
