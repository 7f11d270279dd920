"""What runs on a node of a cluster: one group of runs. What becomes of them is written to a file beside the runs, which
the driver reads; another file, or the first one being gone, tells the node to save and end.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from fedproc import __version__
from fedproc.errors import InputError
from fedproc.simulation.workers.cluster import expect_seen, wait_for_locks
from fedproc.simulation.workers.messages import Message, encoded
from fedproc.simulation.workers.worker import ALIVE_EVERY, keep_to, train

LOOK_EVERY = 0.5  # seconds


class Driver:
    """The driver as its node knows it: a file to write to, and one that may come."""

    def __init__(self, events: Path) -> None:
        self._file: BinaryIO = events.open("ab", buffering=0)
        self._one_at_a_time = threading.Lock()

    def send(self, message: Message) -> None:
        with self._one_at_a_time:
            self._file.write(encoded(message))


def train_group(order: Message) -> None:
    """Train the group of an order, from wherever its runs are."""
    import torch

    from fedproc.simulation.interrupt import Interrupt
    from fedproc.simulation.place import Place
    from fedproc.simulation.preparation import Library

    folder, events, node = Path(order["folder"]), Path(order["events"]), socket.gethostname()
    if __version__ != order["version"]:
        raise InputError(f"--cluster: node {node} has fedproc {__version__}, and the command {order['version']}")
    expect_seen(folder, order["word"], node)
    _print_to(folder / f"worker-{order['place']['worker']}.log", node)
    driver, interrupt, place = Driver(events), Interrupt(), Place.of(order["place"])
    driver.send({"event": "alive", "node": node, "process": os.getpid()})
    over = threading.Event()

    def live() -> None:
        spoke = 0.0
        while not over.wait(LOOK_EVERY):
            spoke += LOOK_EVERY
            if events.with_suffix(".stop").exists() or not events.exists():
                with suppress(KeyboardInterrupt):
                    interrupt.request()  # noticed after the exchange that is being done
            if spoke >= ALIVE_EVERY:
                driver.send({"event": "alive"})
                spoke = 0.0

    threading.Thread(target=live, daemon=True).start()
    torch.set_num_threads(place.share.cores)
    try:
        wait_for_locks([Path(run["path"]) for run in order["runs"].values()])
        keep_to(place, order)
        train(order, driver, Library(), place, interrupt)
    except KeyboardInterrupt:
        pass  # saved
    finally:
        over.set()


def _print_to(log: Path, node: str) -> None:
    """What is printed from here on goes to the worker's log: in the driver's terminal it would tear the display."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    os.write(1, f"--- {stamp}: node {node}, process {os.getpid()}\n".encode())
