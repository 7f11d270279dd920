"""Where a person's own code went wrong: its file and line for the reason of a failure, and the traceback as text."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
INSTALLED = {"site-packages", "dist-packages"}
TYPED = ("<ipython-input", "<stdin", "<python-input", "<console")  # what Python calls input that is in no file


def in_words(error: BaseException) -> str:
    """An error's kind and text, and the innermost line of a person's own code that it came through."""
    where = place(error)
    return f"{type(error).__name__}: {error}" + (f" ({where})" if where else "")


def place(error: BaseException) -> str | None:
    """File name and line of the innermost frame that is neither ours nor a library's."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    own = [(file, number) for file, number in frames if _own(file)]
    return f"{_name(own[-1][0])}, line {own[-1][1]}" if own else None


def trace(error: BaseException) -> str:
    """The traceback as text, down into a person's own code. The error itself would keep the tensors of all frames."""
    return "".join(traceback.format_exception(error))


def _own(file: str) -> bool:
    if file.startswith("<"):
        return file.startswith(TYPED)
    path = Path(file).resolve()
    if path.is_relative_to(PACKAGE) or INSTALLED & set(path.parts):
        return False
    return not path.is_relative_to(LIBRARY)


def _name(file: str) -> str:
    """A notebook's cell as the notebook calls it, where it says so; otherwise the file without its folder."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)(file)
    return " ".join(named) if named else Path(file).name
