"""Small parts of a federation: kits, the log, the state at a site, the page."""

from __future__ import annotations

import json
import os
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from conftest import typed
from rich.console import Console

from fedproc.errors import InputError, RunError
from fedproc.federate import kits, log
from fedproc.federate.joining import Seen
from fedproc.federate.server_run import checked_seen
from fedproc.federate.state import DiskState
from fedproc.federate.watching import Page, Watching
from fedproc.protocol.guard import Refused

pytest.importorskip("nvflare")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("kits") / "kits"
    kits.init(out, "fl.example.org", 8002, ["berlin", "lyon"])
    return out


def test_kits_hold_what_each_needs_and_no_more(made: Path) -> None:
    for name, role in (("server", "server"), ("admin", "admin"), ("berlin", "site")):
        kit = kits.open_kit(made / name, role)  # type: ignore[arg-type]
        assert kit.check() == [] and (kit.host, kit.port) == ("fl.example.org", 8002)
        key = kit.certificate.with_suffix(".key")
        assert os.stat(key).st_mode & 0o077 == 0 and os.stat(kit.path).st_mode & 0o077 == 0
        left = kit.expires() - datetime.now(UTC)
        assert timedelta(days=300) < left < timedelta(days=400)
    assert os.stat(made / "authority").st_mode & 0o077 == 0
    for name, allowed in (("server", "controller.RoundsController"), ("lyon", "forwarder.TaskForwarder")):
        resources = json.loads((made / name / "local/resources.json").read_text())
        assert resources["class_allow_list"] == [f"fedproc.federate.{allowed}"]
        rights = json.loads((made / name / "local/authorization.json").read_text())["permissions"]
        assert all(right["byoc"] == "none" and right["shell_commands"] == "none" for right in rights.values())
        assert rights["member"]["submit_job"] == "none"
    assert "smallest_class = 5" in (made / "lyon/policy.toml").read_text()
    assert kits.members(made / "admin") == ["berlin", "lyon"]
    assert not list(made.rglob("*.sh"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--attack noise --attackers 0.2", "--attack noise: is for experiments in the simulator; leave it out"),
        ("--method central", "--method central: gathers all images in one place"),
    ],
)
def test_what_is_for_the_simulator_alone_is_refused(
    made: Path, words: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = typed(f"federate start {made / 'admin'} {words} --out {tmp_path / 'run'}", capsys)
    assert code == 2 and sentence in " ".join(err.split()) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("ex ample.org", 8002, ["a"]), "server ex ample.org: expected the host name"),
        (("localhost", 8002, ["server"]), "sites server: expected a name"),
        (("localhost", 8002, ["A b"]), "sites A b: expected a name"),
        (("localhost", 8002, ["a", "a"]), "sites: a is named more than once"),
    ],
)
def test_bad_names_are_refused_before_anything_is_made(
    given: tuple[str, int, list[str]], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        kits.init(tmp_path / "kits", *given)
    assert not (tmp_path / "kits").exists()


def test_a_certificate_that_ends_soon_is_said(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = kits.open_kit(made / "lyon", "site")
    monkeypatch.setattr(kits.Kit, "expires", lambda self: datetime.now(UTC) + timedelta(days=7, hours=1))
    assert "ends in 7 days" in kit.check()[0]
    monkeypatch.setattr(kits.Kit, "expires", lambda self: datetime.now(UTC) - timedelta(days=2))
    with pytest.raises(InputError, match="renew it"):
        kit.check()


def test_no_line_of_the_log_is_lost(tmp_path: Path) -> None:
    log.say(tmp_path, "before")
    tail = log.Tail(tmp_path)
    found = []
    for number in range(200):
        log.say(tmp_path, f"\x1b[2Jline\n{number}")
        if number % 7 == 0:
            found += list(tail.lines())
    with (tmp_path / log.FILE).open("ab") as file:
        file.write(b"half a li")
    found += list(tail.lines())
    assert [line.split()[-1] for line in found] == [str(number) for number in range(200)]
    assert not any("\x1b" in line for line in found)
    with (tmp_path / log.FILE).open("ab") as file:
        file.write(b"ne\n")
    assert list(tail.lines()) == ["half a line"]
    tail.close()


def test_a_sites_state_follows_what_the_server_accepted(tmp_path: Path) -> None:
    def value(states: DiskState) -> float | None:
        found = states.latest(0)
        return None if found is None else float(found["v"])

    states = DiskState(tmp_path, torch.device("cpu"))
    for number in range(5):
        states.commit(0, number, {"v": torch.tensor(float(number))})
        states.settle(number)
        assert value(states) == number
    states.commit(0, 5, {"v": torch.tensor(5.0)})
    again = DiskState(tmp_path, torch.device("cpu"))  # the site was killed
    again.settle(4)  # and its answer of round 5 lost
    assert value(again) == 4
    again.settle(3)  # the server went back to an older checkpoint
    assert value(again) == 3
    again.settle(-1)
    assert value(again) is None
    path = max(tmp_path.glob("*.state"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match="damaged"):
        DiskState(tmp_path, torch.device("cpu")).settle(int(path.stem.removeprefix("round-")))


def test_the_state_that_counts_is_kept_however_old_it_is(tmp_path: Path) -> None:
    states = DiskState(tmp_path, torch.device("cpu"))
    states.commit(0, 1, {"v": torch.tensor(1.0)})
    states.settle(1)
    for number in (6, 7, 8, 9):  # trained, and lost on the way
        states.commit(0, number, {"v": torch.tensor(float(number))})
    again = DiskState(tmp_path, torch.device("cpu"))
    again.settle(1)
    found = again.latest(0)
    assert found is not None and float(found["v"]) == 1


def test_a_removed_name_does_not_come_back(tmp_path: Path) -> None:
    out = tmp_path / "kits"
    kits.init(out, "localhost", 8002, ["a", "b"])
    kits.remove_member(out / "admin", "b")
    assert kits.members(out / "admin") == ["a"]
    with pytest.raises(InputError, match="was removed"):
        kits.add_site(out, "b")
    kits.add_site(out, "c")
    assert kits.members(out / "admin") == ["a", "c"] and kits.members(out / "admin", "removed") == ["b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sums": [1]}, "sums of 1 channels, expected 3"),
        ({"sums": [10**9, 1, 1]}, "sums that no images have"),
        ({"squares": [0, 1, 1]}, "sums that no images have"),
        ({"counts": [1]}, "counts of 1 classes, expected 2"),
    ],
)
def test_sums_that_no_images_have_are_refused(changes: dict[str, list[int]], message: str) -> None:
    good = {"sums": [100, 100, 100], "squares": [10_000, 10_000, 10_000], "pixels": 1, "counts": [1, 2]}
    checked_seen(Seen(**good), 3, 2)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=message):
        checked_seen(Seen(**{**good, **changes}), 3, 2)  # type: ignore[arg-type]


def test_the_page_shows_the_status_and_can_only_be_read(tmp_path: Path) -> None:
    page = Page("0")
    page.start()
    try:
        page.status = {"run": "<b>run</b>", "round": 3}
        with urllib.request.urlopen(page.address + "status.json") as found:
            assert json.loads(found.read()) == page.status
        with urllib.request.urlopen(page.address) as found:
            text = found.read().decode()
            assert "default-src 'none'" in found.headers["Content-Security-Policy"]
        assert "innerHTML" not in text and page.address.startswith("http://127.0.0.1:")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(page.address + "../etc/passwd")
        request = urllib.request.Request(page.address, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(request)
    finally:
        page.stop()
    with pytest.raises(InputError, match="page eighty: expected a port"):
        Page("eighty")


def test_off_a_terminal_every_round_is_a_line(tmp_path: Path) -> None:
    console = Console(file=(tmp_path / "out").open("w"), width=100)
    site = {"state": "away", "reason": "it has gone", "samples": 3, "answered": 1, "accuracy": None}
    with Watching(console) as display:
        records = [{"round": 1, "clients": 2, "train_loss": None, "test_accuracy": 0.5}]
        display.show({"rounds": 3, "records": records, "sites": {"b": site}})
        records.append({"round": 2, "clients": 1, "train_loss": 0.25})
        display.show({"rounds": 3, "records": records, "sites": {"b": site}})
    console.file.close()
    lines = [line[9:] for line in (tmp_path / "out").read_text().splitlines()]
    assert lines == [
        "round 1 of 3: 2 sites, accuracy 50.00 %",
        "site b away: it has gone",
        "round 2 of 3: 1 sites, loss 0.250",
    ]
