"""Where the command line meets the system: closed and full streams, odd names, unreadable and endless files."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from fedproc.cli import BUG, main, told
from fedproc.errors import InputError

TINY = "--clients 2 --rounds 1 --epochs 1 --device cpu --min-size 1"


def shell(line: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    ready = line.replace("fedproc ", f"{sys.executable} -m fedproc ", 1)
    return subprocess.run(
        ["bash", "-c", ready], cwd=folder, env={**os.environ, **environment}, capture_output=True, timeout=100
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    folder = tmp_path_factory.mktemp("edges")
    shutil.copytree(pictures, folder / "pictures")
    os.mkfifo(folder / "pipe.csv")
    os.mkfifo(folder / "pipe.toml")
    (folder / "nested.toml").write_text("a = " + "[" * 5000)
    (folder / "nested.json").write_text("[" * 100_000)
    return folder


def one_sentence(capsys: pytest.CaptureFixture[str], words: list[str]) -> tuple[int, str]:
    code = main(words)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("fedproc: "), said
    assert BUG not in said and "Traceback" not in said and "\x1b" not in said
    return code, said


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"run --data ./{'x' * 300}", "File name too long"),
        (f"run --data pictures --out {'x' * 300}", "File name too long"),
        (f"run --config {'x' * 300}.toml", "File name too long"),
        (f"report {'x' * 300}", "File name too long"),
        (f"predict {'x' * 300} pictures", "File name too long"),
        (f"data show --data pictures {TINY} --out {'x' * 300}.png", "File name too long"),
        ("run --data pipe.csv", "pipe.csv: a pipe, expected a file"),
        ("run --config pipe.toml", "pipe.toml: a pipe, expected a file"),
        ("run --plugin pipe.toml", "pipe.toml: expected a Python file"),
        ("run --data pictures --partition file --partition-file pipe.csv", "pipe.csv: a pipe"),
        ("run --data pictures --encoder-weights pipe.csv", "expected a safetensors file"),
        ("predict pipe.csv pictures", "pipe.csv: a pipe"),
        ("run --config nested.toml", "nested.toml: cannot be read"),
        ("run --data pictures --partition file --partition-file nested.json", "nested.json: cannot be read"),
        ("run --data /dev/null/x", "/dev/null/x"),
        ("run --data pictures --out /dev/null/x", "/dev/null"),
        ("run --data pictures --out /proc/self/x", "/proc/self/x"),
        ("report /proc/self/mem", "/proc/self/mem"),
        ("run --data ./a\udcff", "not UTF-8"),
        ("run --data ./a\x1b[2J", "no such folder"),
    ],
)
def test_errors_of_the_system_are_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    monkeypatch.chdir(place)
    code, said = one_sentence(capsys, line.split(" "))
    assert words in said and code in (1, 2), (code, said)


def test_debug_shows_where(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    assert main(["run", "--debug", "--data", "./nowhere"]) == 2
    said = capsys.readouterr().err
    assert "Traceback" in said and said.splitlines()[-1].startswith("fedproc: --data nowhere: no such folder")


@pytest.mark.parametrize("name", ["a\x1b[31m", "b\nc"])
def test_classes_whose_names_cannot_be_shown_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for each in ("plain", name):
        (tmp_path / "d" / each).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (16, 16), 9 * number).save(tmp_path / "d" / each / f"{number}.png")
    code, said = one_sentence(capsys, f"data show --data {tmp_path / 'd'} {TINY} --out {tmp_path / 'p.png'}".split())
    assert code == 2 and "control characters or bytes that are not UTF-8" in said


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("fedproc list methods >&-", 0, b""),
        ("fedproc list methods >&- 2>&-", 0, b""),
        ("fedproc list methods >/dev/full", 1, b"fedproc: the output: No space left on device\n"),
        *(
            (f"{how}fedproc {words} >/dev/full", 1, b"fedproc: the output: No space left on device\n")
            for words in ("--version", "--help", "run --help", "data show --help")
            for how in ("env -u PYTHONUNBUFFERED ", "PYTHONUNBUFFERED=1 ")
        ),
        ("fedproc run --help >&-", 0, b""),
        ("fedproc run --help | true; exit ${PIPESTATUS[0]}", None, b""),
        ("fedproc run --nonsense 2>&-", 2, b""),
        ("fedproc run --nonsense 2>/dev/full", 2, b""),
        ("fedproc list methods | true; exit ${PIPESTATUS[0]}", None, b""),
    ],
)
def test_closed_and_full_streams(place: Path, line: str, code: int | None, said: bytes) -> None:
    done = shell(line, place)
    assert done.stderr == said and (code is None or done.returncode == code), done


def test_an_ascii_terminal_is_enough(place: Path) -> None:
    done = shell(f"fedproc data show --data pictures {TINY}", place, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == 0 and done.stderr == b"" and b"samples by client" in done.stdout
    done.stdout.decode("ascii")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv to give rights up")
def test_what_may_not_be_read_or_written_is_named(place: Path, tmp_path: Path) -> None:
    for each in (*tmp_path.parents, *place.parents):
        if each.is_relative_to("/tmp") and each != Path("/tmp"):
            each.chmod(each.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    secret = tmp_path / "secret"
    shutil.copytree(place / "pictures", secret)
    secret.chmod(0)
    start = "setpriv --reuid 65534 --regid 65534 --clear-groups fedproc"
    plain = {"FEDPROC_CACHE": "/proc/nowhere", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    if shell(f"{start} --version", place, **plain).returncode != 0:
        pytest.skip("no rights to be given up here")
    for line in (f"run --data {secret} --out /tmp/nobody", f"run --data pictures {TINY} --out {tmp_path / 'out'}"):
        done = shell(f"{start} {line}", place, **plain)
        assert done.returncode in (1, 2) and done.stderr.count(b"\n") == 1 and b"denied" in done.stderr, done.stderr


def test_a_bug_is_called_one() -> None:
    assert told(TypeError("x"))[1].endswith(BUG) and told(InputError("x")) == (2, "x")
    assert told(OSError(28, "No space left on device", "a/b")) == (1, "a/b: No space left on device")
    assert told(MemoryError()) == (1, "not enough memory")
