"""Processes that end with whoever started them, however that ended, so that nothing stays behind after a kill."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

LOOK = 0.5  # seconds between two looks


def end_with_standard_input(whole_group: bool = False) -> None:
    """End this process, or all of its group, when its standard input is closed: whoever started it is gone."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while sys.stdin.buffer.read(1024):
                pass
        if whole_group:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def end_with_parent() -> None:
    """End this process when its parent is another than now, for those whose standard input is not ours to give."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
