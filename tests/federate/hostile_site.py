"""A site whose trainer answers training wrongly, in another way each round; everything else of it is real.

python hostile_site.py KIT DATA
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from test_driver import WRONG

from fedproc.federate import foreground
from fedproc.federate.joining import kind_of
from fedproc.federate.kits import open_kit
from fedproc.federate.lifeline import end_with_standard_input
from fedproc.federate.names import SOCKET
from fedproc.federate.trainer import Trainer, serve
from fedproc.protocol import codec
from fedproc.protocol.codec import Message
from fedproc.protocol.task import Kind


def train(kit: Path, data: Path, address: str) -> None:
    honest = Trainer(kit, kit.name, data, "cpu", threads=1)

    def answer(message: Message) -> Message:
        replied = honest.answer(message)
        if kind_of(message) == "task":
            task = codec.decode_task(message)
            if task.kind is Kind.TRAIN:
                return list(WRONG.values())[task.round % len(WRONG)][0](replied)
        return replied

    end_with_standard_input()
    serve(answer, address)


def main() -> None:
    path, data = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) > 3:
        train(path, data, sys.argv[3])
        return
    kit = open_kit(path, "site")
    with tempfile.TemporaryDirectory(prefix="fedproc-") as short:
        address = str(Path(short) / "trainer")
        environment = {**os.environ, SOCKET: address}
        trainer = [sys.executable, __file__, str(kit.path), str(data), address]
        node = [sys.executable, "-m", "fedproc.federate.node", "site", str(kit.path), "--name", kit.name]
        commands = [("trainer", trainer, environment), ("site", node, environment)]
        foreground._watch(kit, commands, print, lambda: None)


if __name__ == "__main__":
    main()
