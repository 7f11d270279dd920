"""Code of a person's own that is given as objects, as from the cells of a notebook: the SHA-256 of its source, and its
way to workers.

What counts as the source of a class or function: its own, that of its bases and of what it names in its module (other
functions and classes, and plain values), with nothing of fedproc, torch or Python's library. Where Python does not know
the source (an interactive prompt before 3.13), the compiled code stands for it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import inspect
import pickle
import re
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from pydantic import BaseModel

from fedproc.errors import InputError

KNOWN = frozenset({"fedproc", "numpy", "pydantic", "pydantic_core", "torch"}) | sys.stdlib_module_names
NOTEBOOK = "__main__"  # the module of cells and of scripts
PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def sha256_of(*things: object) -> str:
    """The SHA-256 of the source of classes, functions and plain values."""
    digest, seen = hashlib.sha256(), set[int]()
    for thing in things:
        for line in _sources(thing, seen):
            digest.update(f"{line}\0".encode())
    return digest.hexdigest()


def _own(thing: Any) -> bool:
    module = str(getattr(thing, "__module__", None) or "builtins")
    return module == NOTEBOOK or module.partition(".")[0] not in KNOWN


def _sources(thing: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(thing, functools.partial):
        yield f"{thing.args!r} {thing.keywords!r}"
        thing = thing.func
    if id(thing) in seen:
        return
    if isinstance(thing, type):
        seen.add(id(thing))
        yield from _of_class(thing, seen) if _own(thing) else (f"{thing.__module__}.{thing.__qualname__}",)
    elif isinstance(thing, FunctionType):
        seen.add(id(thing))
        yield from _of_function(thing, seen)
    else:
        yield ADDRESS.sub("", repr(thing))


def _of_class(thing: type, seen: set[int]) -> Iterator[str]:
    yield f"class {thing.__qualname__}"
    for base in thing.__mro__[1:]:
        yield from _sources(base, seen)
    if issubclass(thing, BaseModel):
        yield ADDRESS.sub("", repr(thing.model_fields))
    for name, found in vars(thing).items():
        inner = found
        if isinstance(found, (staticmethod, classmethod)):
            inner = found.__func__
        elif isinstance(found, functools.cached_property):
            inner = found.func
        if isinstance(found, property):
            for part in (found.fget, found.fset):
                yield from _sources(part, seen)
        elif isinstance(inner, FunctionType) or not (name.startswith("__") or name == "_abc_impl"):
            yield name
            yield from _sources(inner, seen)


def _of_function(thing: FunctionType, seen: set[int]) -> Iterator[str]:
    plain = inspect.unwrap(thing)
    code = getattr(plain, "__code__", thing.__code__)
    try:
        yield textwrap.dedent(inspect.getsource(plain))
    except (OSError, TypeError):
        yield from _compiled(code)
    for cell in getattr(plain, "__closure__", None) or ():
        try:
            yield from _sources(cell.cell_contents, seen)
        except ValueError:  # not filled yet
            yield ""
    around = getattr(plain, "__globals__", {})
    for name in _names(code):
        found = around.get(name, inspect)  # a module: nothing that is followed
        if isinstance(found, (type, FunctionType)):
            if found.__module__ == plain.__module__ and _own(found):
                yield from _sources(found, seen)
        elif isinstance(found, PLAIN):
            yield f"{name} = {found!r}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _compiled(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
    for inner in code.co_consts:
        yield from _compiled(inner) if isinstance(inner, CodeType) else (repr(inner),)


def packed(thing: object, what: str) -> str:
    """The thing as text for a worker; `what` names it where that cannot be."""
    try:
        import cloudpickle  # writes classes of notebooks down whole
    except ImportError:
        module, name = getattr(thing, "__module__", ""), str(getattr(thing, "__qualname__", ""))
        if module == NOTEBOOK or "<" in name:
            raise InputError(
                f"{what}: workers cannot import what a notebook or script defines; `pip install cloudpickle`, put it "
                "into a file of its own, or take --workers 1"
            ) from None
        cloudpickle = pickle
    try:
        return base64.b64encode(cloudpickle.dumps(thing)).decode()
    except Exception as error:  # anything that a person's own objects hold
        raise InputError(f"{what}: cannot be sent to workers ({error}); take --workers 1") from error


def unpacked(text: str) -> Any:
    """What `packed` wrote, in a worker of the process that did."""
    return pickle.loads(base64.b64decode(text))
