"""NVFlare's own process of a kit, server or site, started by the command in the foreground and ended with it."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import sys
from pathlib import Path

from fedproc.federate.lifeline import end_with_standard_input
from fedproc.federate.log import say
from fedproc.federate.names import ORGANISATION
from fedproc.federate.presence import note_connected

# What NVFlare's log says, and how we say it.
CONNECTED = re.compile(r"New client (\S+)@(\S+) joined")
TRANSLATED = (
    (CONNECTED, r"site \1 connected from \2"),
    (re.compile(r"Remove the dead Client\. Name: (\S+)\."), r"site \1 has gone silent"),
    (re.compile(r"Client Name:\s*(\S+)\s+.*quit"), r"site \1 has left"),
    (re.compile(r"Successfully registered client:?\s*(\S+)"), r"connected to the server as \1"),
    (re.compile(r"Server started"), "listening"),
)


class Readable(logging.Handler):
    """Says what a person wants to know of NVFlare's log."""

    def __init__(self, kit: Path) -> None:
        super().__init__(logging.INFO)
        self._kit = kit

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            text = record.getMessage()
            for pattern, said in TRANSLATED:
                if (found := pattern.search(text)) is not None:
                    say(self._kit, found.expand(said))
                    if pattern is CONNECTED:
                        note_connected(self._kit, found.group(1))
                    return


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["server", "site"])
    parser.add_argument("kit", type=Path)
    parser.add_argument("--name", default="")
    given = parser.parse_args()
    end_with_standard_input(whole_group=True)
    os.environ.setdefault("NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT", "8")
    root = logging.getLogger()
    from nvflare.fuel.f3.mpm import MainProcessMonitor
    from nvflare.private.fed.app.client import client_train
    from nvflare.private.fed.app.server import server_train

    sets = ["secure_train=true", f"org={ORGANISATION}", "config_folder=config"]
    if given.role == "server":
        module, file = server_train, "fed_server.json"
    else:
        module, file = client_train, "fed_client.json"
        sets += [f"uid={given.name}", "heart_beat_interval=5.0"]
    kit = str(given.kit)
    whole = ["-m", kit, "-s", file, "--set", *sets]
    sys.argv = [sys.argv[0], *whole]
    configure = module.configure_logging

    def configured(workspace: object, *more: object, **named: object) -> None:
        configure(workspace, *more, **named)
        root.addHandler(Readable(given.kit))

    module.configure_logging = configured
    args = module.parse_arguments()
    code: int = MainProcessMonitor.run(main_func=module.main, run_dir=kit, args=args)
    return code


if __name__ == "__main__":
    sys.exit(main())
