"""The command line. Exit codes: 0 done, 2 bad input, 1 failure, 130 interrupted."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from fedproc.errors import InputError, RunError, with_flags


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code; an interrupted one saves its runs and ends at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    try:
        from fedproc.cli.commands import execute  # here, since importing torch takes a while and may be interrupted
        from fedproc.simulation.interrupt import Interrupt

        interrupt = Interrupt()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: interrupt.request())
        return execute(sys.argv[1:] if words is None else words, interrupt)
    except InputError as error:
        return _complain(error, 2)
    except RunError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        _leave()  # lanes may be in the middle of a client's round, whose work is lost anyway
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _complain(error: Exception, code: int) -> int:
    print(f"fedproc: {with_flags(error)}", file=sys.stderr)
    return code


def _leave(*signalled: object) -> NoReturn:
    """Exit at once, without cleanup: half-imported libraries do not survive an exception."""
    print("fedproc: interrupted; the same command continues", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)
