"""A partition written as folders."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import toy_images

from fedproc import InputError
from fedproc.data.sites import write_sites

SHARES = [np.arange(0, 80), np.arange(80, 160)]


class Stopped(Exception): ...


def stop_after(count: int) -> object:
    done = 0

    def progress(more: int) -> None:
        nonlocal done
        done += more
        if done >= count:
            raise Stopped

    return progress


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_split_that_was_interrupted_is_continued(tmp_path: Path) -> None:
    images = toy_images()
    write_sites(images, SHARES, tmp_path / "whole")
    for count in (1, 100, 199):
        with pytest.raises(Stopped):
            write_sites(images, SHARES, tmp_path / "cut", progress=stop_after(count))  # type: ignore[arg-type]
        assert not (tmp_path / "cut" / "sites.json").exists()
    with pytest.raises(InputError, match="another split was begun there"):
        write_sites(images, SHARES[::-1], tmp_path / "cut")
    write_sites(images, SHARES, tmp_path / "cut")
    assert everything(tmp_path / "cut") == everything(tmp_path / "whole")
    with pytest.raises(InputError, match="already there; expected a new or empty folder"):
        write_sites(images, SHARES, tmp_path / "cut")


def test_the_end_of_a_split_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is synced once sites.json has its name."""
    out, then = tmp_path / "sites", []
    real = os.fsync

    def sync(handle: int) -> None:
        then.append((os.readlink(f"/proc/self/fd/{handle}"), (out / "sites.json").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", sync)
    write_sites(toy_images(), SHARES, out)
    assert then[-1] == (str(out), True)
