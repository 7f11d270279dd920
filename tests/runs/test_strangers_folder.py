"""Continuing a run in a folder that somebody else made: nothing outside is touched, nothing of theirs deleted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from conftest import contents, work

from fedproc import InputError
from fedproc.files import write_file

ON_DISK = {"method": "scaffold", "client_memory": 0, "sample": 0.6}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds with its clients' states on disk, that has two more to go."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    work(folder, rounds=4, **ON_DISK)
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


@pytest.mark.parametrize("name", ["clients", "checkpoint", "models", "metrics.jsonl", "config.json", "tensorboard"])
@pytest.mark.parametrize("fresh", [False, True])
def test_links_are_refused_and_what_they_lead_to_is_left_alone(
    run: Path, tmp_path: Path, name: str, fresh: bool
) -> None:
    victim = tmp_path / "victim"
    if (run / name).exists():
        shutil.move(run / name, victim)
    else:
        victim.mkdir()
    if victim.is_dir():
        (victim / "client-000000-round-000000.safetensors").write_text("precious")
    before = sorted((str(p), p.stat().st_size) for p in victim.rglob("*")) or victim.read_bytes()
    (run / name).symlink_to(victim)
    with pytest.raises(InputError, match=f"{name}: a link, expected what the run itself made"):
        work(run, rounds=6, fresh=fresh, **ON_DISK)
    assert (sorted((str(p), p.stat().st_size) for p in victim.rglob("*")) or victim.read_bytes()) == before


@pytest.mark.parametrize("name", ["checkpoint/round-000004", "checkpoint/round-000004/checkpoint.json"])
def test_links_deep_inside_are_refused(run: Path, tmp_path: Path, name: str) -> None:
    shutil.move(run / name, tmp_path / "victim")
    (run / name).symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="a link"):
        work(run, rounds=6, **ON_DISK)


def test_a_pipe_is_not_waited_for(run: Path) -> None:
    (run / "result.json").unlink()
    os.mkfifo(run / "result.json")
    with pytest.raises(InputError, match=r"result\.json: a pipe"):
        work(run, rounds=6, **ON_DISK)


def test_half_written_links_are_not_written_through(run: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (run / ".tmp-result.json").symlink_to(tmp_path / "victim")
    (run / "checkpoint" / ".tmp-round-000006").symlink_to(tmp_path)
    with pytest.raises(InputError, match="a link"):
        work(run, rounds=6, **ON_DISK)
    (run / "checkpoint" / ".tmp-round-000006").unlink()
    work(run, rounds=6, **ON_DISK)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("fresh", [False, True])
def test_ones_own_files_in_a_run_folder_stay(run: Path, fresh: bool) -> None:
    mine = [
        "notes.txt",
        "clients/notes.txt",
        "checkpoint/notes.txt",
        "checkpoint/round-mine/x",
        "checkpoint/.tmp-mine",
        "checkpoint/round-000004/notes.txt",
        "models/notes.txt",
        "tensorboard/notes.txt",
    ]
    for name in mine:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    session = work(run, rounds=6, fresh=fresh, **ON_DISK) if not fresh else None
    if session is None:
        with pytest.raises(InputError, match=r"round-000004: holds notes\.txt, which is not the run's"):
            work(run, rounds=6, fresh=True, **ON_DISK)
    else:
        assert session.result is not None
    assert [name for name in mine if not (run / name).exists()] == []


def test_a_damaged_client_state_falls_back_to_the_checkpoint_before(stopped: Path, tmp_path: Path) -> None:
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    work(whole, rounds=6, **ON_DISK)
    from fedproc.simulation.interrupt import Interrupt

    work_until(hurt, 4, Interrupt())
    newest = max((hurt / "clients").iterdir(), key=lambda path: path.name.rpartition("-")[2])
    newest.write_bytes(newest.read_bytes()[:-1] + b"\x00")
    again = work(hurt, rounds=6, **ON_DISK)
    assert again.result is not None
    one, other = contents(whole), contents(hurt)
    assert sorted(one) == sorted(other) and all(one[name] == other[name] for name in one)


def work_until(folder: Path, rounds: int, interrupt: object) -> None:
    """Leave a run after so many of its six rounds, as a kill would."""
    from conftest import ToyLibrary, toy_experiment, toy_images

    from fedproc.lanes import choose
    from fedproc.simulation.drive import drive
    from fedproc.simulation.session import Session

    session = Session(toy_experiment(rounds=6, checkpoint_every=2, **ON_DISK), ToyLibrary(toy_images()))
    session.claim(folder)
    session.open(False)

    class Enough(Exception): ...

    class Watch:
        def begin(self, *about: object) -> None: ...

        def update(self, run: Session) -> None:
            if len(run.records) > rounds:
                raise Enough

        def end(self) -> None: ...

    executor = choose("serial", 1, 1, [session.setting], 5)
    with pytest.raises(Enough):
        drive([session], executor, Watch())
    executor.close()
    session.close()


def test_a_missing_model_is_made_again(run: Path) -> None:
    before = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").unlink()
    session = work(run, rounds=4, **ON_DISK)
    assert (run / "model.safetensors").read_bytes() == before
    assert session.notes == ["model.safetensors was missing and is made again"]
    shutil.rmtree(run / "checkpoint")
    (run / "model.safetensors").unlink()
    session = work(run, rounds=4, **ON_DISK)
    assert session.result is not None and "cannot be made again" in session.notes[0]


def test_files_are_not_written_through_links_nor_instead_of_pipes(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(InputError, match="is not replaced"):
            write_file(tmp_path / name, lambda path: path.write_text("new"))
    assert (tmp_path / "victim").read_text() == "precious" and (tmp_path / "pipe").is_fifo()
    (tmp_path / ".tmp-new").symlink_to(tmp_path / "victim")
    write_file(tmp_path / "new", lambda path: path.write_text("new"))
    assert (tmp_path / "victim").read_text() == "precious" and (tmp_path / "new").read_text() == "new"
