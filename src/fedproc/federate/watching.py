"""How a run over the network is shown: a table on a terminal, lines elsewhere, a page in a browser."""

from __future__ import annotations

import json
import threading
import webbrowser
from collections.abc import Sequence
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedproc.errors import InputError
from fedproc.federate.log import printable
from fedproc.federate.session import Session

Record = dict[str, Any]
LOOPBACK = "127.0.0.1"
REASONS = 5  # refusals that are shown


class Watching:
    """Shows a run while it is under way."""

    def __init__(self, console: Console, page: str | None = None, open_page: bool = False) -> None:
        self._console = console
        self._live: Live | None = None
        self._seen = 0
        self._states: dict[str, str] = {}
        self._noted: set[str] = set()
        self._page = Page(page or "0") if page is not None or open_page else None
        self._open = open_page

    def __enter__(self) -> Watching:
        if self._page is not None:
            self._page.start()
            self.say(f"page: {self._page.address}")
            if self._open:
                webbrowser.open(self._page.address)
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()
        if self._page is not None:
            self._page.stop()

    def say(self, text: str) -> None:
        self._console.print(f"{datetime.now():%H:%M:%S} {printable(text)}", highlight=False, soft_wrap=True)
        self._console.file.flush()

    def show(self, status: Record) -> None:
        """The latest status, with all records so far."""
        if self._page is not None:
            self._page.status = status
        for note in status.get("notes", []):
            if note not in self._noted:
                self._noted.add(note)
                self.say(note)
        if self._live is not None:
            self._live.update(pictured(status), refresh=True)
            return
        for record in status.get("records", [])[self._seen :]:
            self._seen += 1
            self.say(round_line(record, int(status["rounds"])))
        for site, one in status.get("sites", {}).items():
            state = f"{one['state']}: {one['reason']}" if one["state"] in ("away", "refused") else ""
            if state and self._states.get(site) != state:
                self.say(f"site {site} {state}")
            self._states[site] = state


def round_line(record: Record, rounds: int) -> str:
    """A round in one line."""
    accuracy = record.get("test_accuracy", record.get("val_accuracy"))
    shown = f", accuracy {100 * accuracy:.2f} %" if accuracy is not None else ""
    loss = f", loss {record['train_loss']:.3f}" if record.get("train_loss") is not None else ""
    return f"round {record['round']} of {rounds}: {record['clients']} sites{loss}{shown}"


def pictured(status: Record) -> Group:
    """The status as a table for a terminal."""
    table = Table(box=box.SIMPLE_HEAD, title=heading(status), title_justify="left")
    for head in ("site", "images", "state", "last good round", "accuracy there"):
        table.add_column(head, justify="left" if head in ("site", "state") else "right")
    for site, one in status.get("sites", {}).items():
        accuracy = "" if one.get("accuracy") is None else f"{100 * one['accuracy']:.1f} %"
        state = f"{one['state']}: {one['reason']}" if one["state"] in ("away", "refused") else one["state"]
        table.add_row(site, f"{one['samples'] or ''}", printable(state), f"{one['answered'] or ''}", accuracy)
    refused = [
        Text(printable(f"round {r['round']}, {r['site']}: {r['reason']}"))
        for r in status.get("refusals", [])[-REASONS:]
    ]
    return Group(table, *refused)


def heading(status: Record) -> str:
    accuracies = [r["test_accuracy"] for r in status.get("records", []) if "test_accuracy" in r]
    shown = f", accuracy {100 * accuracies[-1]:.2f} %" if accuracies else ""
    rounds = f"round {status.get('round', 0)} of {status.get('rounds', '?')}"
    return f"{status.get('run', '')}: {rounds}{shown}, {status.get('doing', '')}"


class Page:
    """A page that shows the status, read-only, on loopback unless another address was asked for."""

    def __init__(self, where: str) -> None:
        host, _, port = where.rpartition(":")
        if not port.isdigit() or int(port) > 65535:
            raise InputError(f"--page {where}: expected a port, or HOST:PORT")
        self.status: Record = {}
        page = (files("fedproc.federate") / "live.html").read_bytes()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:  # noqa: N805
                if handler.path == "/":
                    content, kind = page, "text/html; charset=utf-8"
                elif handler.path == "/status.json":
                    content, kind = json.dumps(self.status).encode(), "application/json"
                else:
                    handler.send_error(404)
                    return
                handler.send_response(200)
                handler.send_header("Content-Type", kind)
                handler.send_header("Content-Length", str(len(content)))
                handler.send_header("Cache-Control", "no-store")
                policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
                handler.send_header("Content-Security-Policy", policy)
                handler.end_headers()
                handler.wfile.write(content)

            def log_message(handler, *words: object) -> None: ...  # noqa: N805

        try:
            self._server = ThreadingHTTPServer((host or LOOPBACK, int(port)), Handler)
        except OSError as error:
            raise InputError(f"--page {where}: cannot be listened on: {error.strerror}") from error
        self.address = f"http://{host or LOOPBACK}:{self._server.server_address[1]}/"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def status_of(known: Sequence[str], session: Session) -> Record:
    """The status of whatever is under way, or of the sites alone."""
    for job in session.running():
        found = session.ask(job, do="status", since=0)
        if found is not None:
            return found
    connected = session.connected()
    sites = {
        site: {"state": "connected" if site in connected else "not connected", "reason": "", "samples": 0,
               "answered": 0, "accuracy": None}
        for site in known
    }  # fmt: skip
    return {
        "run": "nothing under way",
        "round": 0,
        "rounds": 0,
        "doing": "waiting for `federate start`",
        "sites": sites,
    }


def show_status(console: Console, known: Sequence[str], session: Session) -> None:
    console.print(pictured(status_of(known, session)))
