"""Trackers in a folder that somebody else made: nothing is written through a link, and no pipe is waited for."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedproc import Experiment, InputError, compare
from fedproc.runs import made
from fedproc.runs.made import expect_plain
from fedproc.simulation import drive
from fedproc.simulation.watching import Everybody
from fedproc.watchers.mlflow import SEVERAL
from fedproc.watchers.tracker import Tracker
from fedproc.watchers.trackers import TRACKERS, finish, trackers

TOY: dict[str, Any] = {"clients": 3, "epochs": 1, "batch_size": 16, "device": "cpu", "lr_schedule": "constant"}
PLACES = {
    "tensorboard": ["", "rounds-written", "events.out.tfevents.1", "00001/z"],
    "mlflow": ["", "rounds-written", "run-id", "mlflow.db", "artifacts/1"],
    "wandb": ["", "rounds-written", "run-id", "latest-run", "debug.log", "run-1/logs"],
}
CASES = [(name, place) for name, places in PLACES.items() for place in places]
NEEDS = {"tensorboard": "tensorboard", "mlflow": "sqlalchemy", "wandb": "wandb"}


@pytest.fixture(scope="module")
def stopped(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "run"
    drive.run(experiment(pictures), folder)
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("1\n")
    return tmp_path / "victim"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """What waits for a pipe is ended."""

    def late(*given: object) -> None:
        raise TimeoutError("waited for a pipe")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def experiment(pictures: Path) -> Experiment:
    return Experiment(preset="paper", method="fedavg", data=str(pictures), rounds=1, **TOY)


def tracked(pictures: Path, out: Path, name: str) -> None:
    """The run with a tracker, as the command does it."""
    pytest.importorskip(NEEDS[name])
    tracking = trackers(name, out)
    done = drive.run(experiment(pictures), out, watcher=Everybody(tracking))
    finish(tracking, [done])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "place"), CASES)
@pytest.mark.parametrize("lost", [False, True])
def test_links_are_refused_and_what_they_lead_to_is_left_alone(
    pictures: Path, run: Path, victim: Path, name: str, place: str, lost: bool
) -> None:
    link = run / name / place if place else run / name
    link.parent.mkdir(parents=True, exist_ok=True)
    leads_to = victim if place in ("", "00001/z", "artifacts/1", "latest-run", "run-1/logs") else victim / "precious"
    link.symlink_to(victim / "new" if lost else leads_to)
    before = content(victim)
    with pytest.raises(InputError, match=rf"{link}: a link, expected what the run itself made"):
        tracked(pictures, run, name)
    assert content(victim) == before and link.is_symlink()


@pytest.mark.parametrize("name", list(TRACKERS))
@pytest.mark.parametrize("place", ["rounds-written", "run-1/deep/pipe"])
def test_pipes_are_not_waited_for(pictures: Path, run: Path, name: str, place: str) -> None:
    pipe = run / name / place
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=rf"{pipe}: a pipe, expected what the run itself made"):
        tracked(pictures, run, name)


@pytest.mark.parametrize("name", list(TRACKERS))
@pytest.mark.parametrize("place", ["", "below/mine"])
def test_the_folder_of_a_comparison_is_looked_at(
    pictures: Path, tmp_path: Path, victim: Path, name: str, place: str
) -> None:
    pytest.importorskip(NEEDS[name])
    link = tmp_path / "cmp" / name / place if place else tmp_path / "cmp" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with pytest.raises(InputError, match=rf"{link}: a link, expected what the run itself made"):
        compare(["fedavg"], [0], tmp_path / "cmp", data=str(pictures), rounds=1, progress=False, log=[name], **TOY)
    assert list(content(victim)) == ["precious"]


class Plain(Tracker):
    name = "plain"


def test_a_tracker_looks_for_itself(tmp_path: Path, victim: Path) -> None:
    """Also where no run was opened in this process: a worker did that."""
    tracker = Plain(tmp_path / "home")
    (tmp_path / "run" / "plain").mkdir(parents=True)
    (tmp_path / "run" / "plain" / "rounds-written").symlink_to(victim / "precious")
    for work in (
        lambda: tracker.number(tmp_path / "run", "rounds-written"),
        lambda: tracker.put(tmp_path / "run", "rounds-written", 7),
        lambda: tracker.folder(tmp_path / "run"),
    ):
        with pytest.raises(InputError, match="rounds-written: a link"):
            work()
    assert content(victim) == {"precious": b"1\n"}


@pytest.mark.parametrize("text", ["-3", "x", "", "9" * 5000, "\xff", "../../x"])
def test_what_a_file_of_a_tracker_says_is_taken_with_care(tmp_path: Path, text: str) -> None:
    (tmp_path / "plain").mkdir()
    for name in ("rounds-written", "run-id"):
        (tmp_path / "plain" / name).write_bytes(text.encode("latin-1"))
    tracker = Plain(tmp_path)
    assert tracker.number(tmp_path, "rounds-written") == 0
    assert tracker.identity(tmp_path) in (None, text)
    assert "/" not in str(tracker.identity(tmp_path))


def test_a_file_in_place_of_the_folder_and_a_hidden_one_are_named(run: Path) -> None:
    pytest.importorskip("wandb")
    (run / "mlflow").write_text("")
    with pytest.raises(InputError, match="mlflow: a file, expected what the run itself made"):
        expect_plain(run, "mlflow")
    (run / ".wandb").symlink_to(run)
    with pytest.raises(InputError, match=r"\.wandb: a link"):
        trackers("wandb", run)


def hot_journal(store: Path, names: Path) -> None:
    """A store that was left in the middle of a write, whose journal says that it is one of those that `names` lists."""
    with closing(sqlite3.connect(store)) as begun:
        begun.execute("create table t(x)")
        begun.commit()
    with closing(sqlite3.connect(store, isolation_level=None)) as under_way:
        under_way.execute("pragma cache_size=1")
        under_way.execute("begin immediate")
        under_way.executemany("insert into t values(?)", [(bytes(1000),)] * 2000)
        journal, half = store.with_name(f"{store.name}-journal").read_bytes(), store.read_bytes()
        under_way.execute("rollback")
    name = str(names).encode()
    page = (1 << 30) // 4096 + 1  # the one that locks are on
    end = struct.pack(">I", page) + name + struct.pack(">II", len(name), sum(name)) + SEVERAL
    store.write_bytes(half)
    store.with_name(f"{store.name}-journal").write_bytes(journal + end)


def test_a_journal_that_would_have_a_file_elsewhere_deleted_is_refused(pictures: Path, run: Path, victim: Path) -> None:
    (run / "mlflow").mkdir()
    hot_journal(run / "mlflow" / "mlflow.db", victim / "precious")
    with pytest.raises(InputError, match=r"mlflow\.db-journal: names a file elsewhere"):
        tracked(pictures, run, "mlflow")
    assert content(victim) == {"precious": b"1\n"}


def test_links_that_wandb_makes_are_its_own(tmp_path: Path) -> None:
    wandb = tmp_path / "wandb"
    (wandb / "offline-run-1-a" / "logs").mkdir(parents=True)
    (wandb / "latest-run").symlink_to("offline-run-1-a")
    (wandb / "debug.log").symlink_to("offline-run-1-a/logs/debug.log")
    (wandb / "offline-run-1-a" / "logs" / "debug-core.log").symlink_to("/cache/wandb/logs/core-debug-1.log")
    expect_plain(tmp_path, "wandb")
    for target in ("../x", "/etc", "offline-run-1-a/../../x", "run-1/logs/debug.log"):
        (wandb / "latest-run").unlink()
        (wandb / "latest-run").symlink_to(target)
        with pytest.raises(InputError, match="latest-run: a link"):
            expect_plain(tmp_path, "wandb")


def test_the_look_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mlflow" / "/".join("d" * 50)).mkdir(parents=True)
    with pytest.raises(InputError, match="more than 40 folders inside each other"):
        expect_plain(tmp_path, "mlflow")
    monkeypatch.setattr(made, "MOST", 10)
    with pytest.raises(InputError, match="more than 10 files"):
        expect_plain(tmp_path, "mlflow")
