"""Fetching, against a server on this machine: right, wrong and no bytes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedproc import RunError
from fedproc.data.download import Download, fetch

CONTENT = b"the published bytes" * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        Handler.asked += 1
        if self.path == "/missing.tar.gz":
            self.send_error(404)
            return
        body = CONTENT if self.path == "/right.tar.gz" else b"something else"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (100 if "cut" in self.path else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDPROC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def files(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.rglob("*")) if cache.exists() else []


def test_fetched_once_and_checked(server: str, cache: Path) -> None:
    download = Download(f"{server}/right.tar.gz", MD5)
    assert fetch(download).read_bytes() == CONTENT
    before = Handler.asked
    assert fetch(download) == cache / "right.tar.gz"
    assert Handler.asked == before
    assert files(cache) == ["right.tar.gz"]


def test_a_damaged_file_in_the_cache_is_fetched_again(server: str, cache: Path) -> None:
    cache.mkdir()
    (cache / "right.tar.gz").write_bytes(CONTENT[:-1])
    assert fetch(Download(f"{server}/right.tar.gz", MD5)).read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["wrong.tar.gz", "missing.tar.gz", "cut.tar.gz"])
def test_bad_answers_leave_nothing_behind(server: str, cache: Path, name: str) -> None:
    with pytest.raises(RunError) as caught:
        fetch(Download(f"{server}/{name}", MD5))
    assert files(cache) == []
    for word in (name, str(cache), MD5, "data_dir"):
        assert word in str(caught.value)


def test_offline_the_error_says_what_to_put_where(cache: Path) -> None:
    with pytest.raises(RunError) as caught:
        fetch(Download("http://127.0.0.1:1/cifar.tar.gz", MD5))
    for word in ("cifar.tar.gz", str(cache), MD5, "data_dir"):
        assert word in str(caught.value)
    assert files(cache) == []
