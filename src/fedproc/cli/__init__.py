"""The command line. Exit codes: 0 done, 2 bad input, 1 failure, 130 interrupted."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import traceback
from typing import NoReturn

from fedproc.errors import InputError, RunError, with_flags

DEBUG = "--debug"
NAMES = {  # errors of the system that a name which was given leads to: bad input, not a failure
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM,
    errno.ENODEV, errno.ENXIO,
}  # fmt: skip
BUG = "this is a bug in fedproc; --debug shows where"
CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


def main(words: list[str] | None = None) -> int:
    """Run a command and return its exit code; an interrupted one saves its runs and ends at once."""
    given = sys.argv[1:] if words is None else words
    debug = DEBUG in given
    given = [word for word in given if word != DEBUG]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    _open_streams()
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _leave()  # lanes may be in the middle of a client's round, whose work is lost anyway
    except BrokenPipeError:
        _silence(sys.stdout)
        return 1
    except Exception as error:
        if debug:
            sys.stderr.write(getattr(error, "trace", "") or traceback.format_exc())
        code, text = told(error)
        return _complain(text, code)


def _run(words: list[str]) -> int:
    from fedproc.cli.commands import execute  # here, since importing torch takes a while and may be interrupted
    from fedproc.simulation.interrupt import Interrupt

    for word in words:
        if not word.isprintable() and word.encode("utf-8", "replace") != word.encode("utf-8", "surrogateescape"):
            raise InputError(f"{word}: not UTF-8, which names must be; rename it")
    interrupt = Interrupt()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: interrupt.request())
    return execute(words, interrupt)


def told(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence for what ended a command."""
    if isinstance(error, InputError | RunError):
        return (2 if isinstance(error, InputError) else 1), with_flags(error)
    if isinstance(error, OSError):
        where = next((str(name) for name in (error.filename2, error.filename) if name not in (None, "")), None)
        reason = error.strerror or str(error) or type(error).__name__
        if where is None and error.errno == errno.ENOSPC:
            where = "the output"
        return (2 if error.errno in NAMES else 1), f"{where}: {reason}" if where else reason
    if isinstance(error, MemoryError):
        return 1, f"not enough memory: {error}" if str(error) else "not enough memory"
    if isinstance(error, RecursionError):
        return 2, "a file that was given is nested too deeply to be read"
    if isinstance(error, UnicodeError):
        return 2, f"a name or a file that was given is not UTF-8: {error}"
    cause = error.__cause__
    if isinstance(cause, InputError | RunError):
        return told(cause)
    return 1, f"{type(error).__name__}: {error}: {BUG}"


def _complain(text: str, code: int) -> int:
    try:
        print(f"fedproc: {' '.join(text.split(chr(10))).translate(CONTROL)}", file=sys.stderr, flush=True)
    except OSError:
        _silence(sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _silence(sys.stdout)
    return code


def _open_streams() -> None:
    """Let both streams take any text: closed ones send it nowhere, a terminal shows ? for signs that it lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open as long as the process)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _silence(stream: io.TextIOBase | object) -> None:
    """Nobody reads it: what is left in its buffer goes nowhere, without a word at the end of the process."""
    if isinstance(stream, io.TextIOWrapper):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _leave(*signalled: object) -> NoReturn:
    """Exit at once, without cleanup: half-imported libraries do not survive an exception."""
    for stream, text in ((sys.stderr, "fedproc: interrupted; the same command continues\n"), (sys.stdout, "")):
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(130)
