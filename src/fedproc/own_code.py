"""Code of a person's own that is given as objects, as from the cells of a notebook: the SHA-256 of its source, and its
way to workers.

What counts as the source of a class or function: its own, that of its bases, of what it wraps and of what it names in
its module (other functions and classes, plain values, tensors and arrays), and the values of its default arguments;
with nothing of fedproc, torch or Python's library. Where Python does not know the source (an interactive prompt before
3.13), the compiled code stands for it.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import inspect
import linecache
import pickle
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from fedproc.errors import InputError

FORM = 2  # of the hash: those of two forms are not comparable
KNOWN = frozenset({"fedproc", "numpy", "pydantic", "pydantic_core", "torch"}) | sys.stdlib_module_names
NOTEBOOK = "__main__"  # the module of cells and of scripts
PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))
SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})
NUMBERS = (Tensor, np.ndarray, np.generic)
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
CHUNK = 1 << 22  # numbers of an array that are copied at a time


def sha256_of(*things: object) -> str:
    """The SHA-256 of the source of classes, functions, plain values, tensors and arrays."""
    sources = _Sources()
    return _digest(map(sources.of, things))


def sha256_of_tensor(tensor: Tensor) -> str:
    """The SHA-256 of a tensor's type, shape and values."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    said = f"{tensor.dtype} {tuple(tensor.shape)}"
    if plain.is_meta or plain.is_quantized:
        return _digest([said, repr(plain)])
    plain = plain if plain.layout is torch.strided else plain.to_dense()
    return _of_values(said, plain.cpu().contiguous().view(-1).view(torch.uint8).numpy())


def _of_array(array: np.ndarray[Any, Any]) -> str:
    return _of_values(f"{array.dtype} {array.shape}", array.reshape(-1))


def _of_values(said: str, values: np.ndarray[Any, Any]) -> str:
    digest = hashlib.sha256(said.encode())
    for start in range(0, len(values), CHUNK):
        digest.update(values[start : start + CHUNK].tobytes())
    return digest.hexdigest()


def _digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\0".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _module(thing: Any) -> str:
    """Where it is defined: of a wrapper not what it says, which is the module of what it wraps."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__") or NOTEBOOK)
    return str(getattr(thing, "__module__", None) or "builtins")


def _own(thing: Any) -> bool:
    module = _module(thing)
    return module == NOTEBOOK or module.partition(".")[0] not in KNOWN


class _Sources:
    """The SHA-256 of each thing by what is in it: two that are alike have the same, whichever objects they are."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, object]] = {}  # holds the object, so that no other gets its id
        self._within: list[int] = []  # what is being looked at, from the outside in

    def of(self, thing: Any) -> str:
        if type(thing) in SCALARS:
            return repr(thing)
        place = id(thing)
        if place in self._within:  # a ring: a function that names itself, a list that holds itself
            return f"{len(self._within) - self._within.index(place)} above"
        if place not in self._known:
            self._within.append(place)
            found = _digest(self._lines(thing))
            self._within.pop()
            if isinstance(thing, (type, FunctionType)):
                self._known[place] = found, thing
            return found
        return self._known[place][0]

    def _lines(self, thing: Any) -> Iterator[str]:
        if isinstance(thing, type):
            yield from self._of_class(thing) if _own(thing) else (f"{thing.__module__}.{thing.__qualname__}",)
        elif isinstance(thing, FunctionType):
            yield from self._of_function(thing)
        elif isinstance(thing, functools.partial):
            yield from map(self.of, ("partial", thing.func, thing.args, thing.keywords))
        elif isinstance(thing, MethodType):
            yield from map(self.of, ("method", thing.__func__, thing.__self__))
        elif isinstance(thing, Tensor):
            yield sha256_of_tensor(thing)
        elif isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            yield _of_array(thing)
        elif isinstance(thing, np.ndarray):
            yield from map(self.of, (str(thing.shape), thing.tolist()))
        elif isinstance(thing, dict):
            yield type(thing).__qualname__
            for key, value in thing.items():
                yield from (self.of(key), self.of(value))
        elif isinstance(thing, (list, tuple)):
            yield type(thing).__qualname__
            yield from map(self.of, thing)
        elif isinstance(thing, (set, frozenset)):
            yield type(thing).__qualname__
            yield from sorted(map(self.of, thing))  # whose own order is another in each process
        elif dataclasses.is_dataclass(thing):
            yield type(thing).__qualname__
            for each in dataclasses.fields(thing):
                yield from (each.name, self.of(getattr(thing, each.name, None)))
        elif (wrapped := _wrapped(thing)) is not None:  # functools.cache
            yield from (type(thing).__qualname__, self.of(wrapped))
        else:
            yield _shown(thing)

    def _of_class(self, thing: type) -> Iterator[str]:
        yield f"class {thing.__qualname__}"
        yield from map(self.of, thing.__mro__[1:])
        if issubclass(thing, BaseModel):
            for name, field in thing.model_fields.items():
                yield from (name, self.of(list(field.__repr_args__())), self.of(field.default_factory))
        for name, found in vars(thing).items():
            inner = found
            if isinstance(found, (staticmethod, classmethod)):
                inner = found.__func__
            elif isinstance(found, functools.cached_property):
                inner = found.func
            if isinstance(found, property):
                yield name
                yield from map(self.of, (found.fget, found.fset))
            elif isinstance(inner, FunctionType) or not (name.startswith("__") or name == "_abc_impl"):
                yield name
                yield self.of(inner)

    def _of_function(self, thing: FunctionType) -> Iterator[str]:
        code = thing.__code__
        if not _own(thing):
            yield f"{_module(thing)}.{code.co_qualname}"
        else:
            yield from self._of_code(thing, code)
        if (wrapped := _wrapped(thing)) is not None:
            yield self.of(wrapped)

    def _of_code(self, thing: FunctionType, code: CodeType) -> Iterator[str]:
        text = _lambda(code) if code.co_name == "<lambda>" else _text(thing)
        yield from (text,) if text is not None else self._compiled(code)
        yield from map(self.of, (thing.__defaults__, thing.__kwdefaults__))
        for cell in thing.__closure__ or ():
            try:
                yield self.of(cell.cell_contents)
            except ValueError:  # not filled yet
                yield ""
        for name in _names(code):
            found = thing.__globals__.get(name, inspect)  # a module: nothing that is followed
            if self._followed(found, thing):
                yield from (name, self.of(found))

    def _followed(self, found: Any, by: FunctionType) -> bool:
        """Whether a global counts that a function names."""
        if isinstance(found, functools.partial):
            return True
        if dataclasses.is_dataclass(found) and not isinstance(found, type):
            return _own(type(found))
        inner = found if isinstance(found, (type, FunctionType)) else _wrapped(found)
        if isinstance(inner, (type, FunctionType)):
            modules = {_module(found), getattr(found, "__module__", None)}
            return by.__globals__.get("__name__") in modules and (_own(found) or _own(inner))
        return isinstance(found, (*PLAIN, *NUMBERS))

    def _compiled(self, code: CodeType) -> Iterator[str]:
        yield f"{code.co_code.hex()} {code.co_names} {code.co_varnames}"
        for inner in code.co_consts:
            yield from self._compiled(inner) if isinstance(inner, CodeType) else (self.of(inner),)


def _wrapped(thing: Any) -> Any:
    """What functools.wraps says that it wraps."""
    inside = getattr(thing, "__dict__", None)
    return inside.get("__wrapped__") if isinstance(inside, dict) else None


def _shown(thing: Any) -> str:
    try:
        return ADDRESS.sub("", repr(thing))
    except Exception:  # of anything that a person's own objects do
        return type(thing).__qualname__


def _text(thing: FunctionType) -> str | None:
    """The source of a function; None where Python does not know it."""
    alone = FunctionType(thing.__code__, thing.__globals__, closure=thing.__closure__)  # getsource unwraps others
    try:
        return textwrap.dedent(inspect.getsource(alone))
    except (OSError, TypeError, SyntaxError):
        return None


def _lambda(code: CodeType) -> str | None:
    """The source of a lambda by itself: the line that it stands on may have anything else on it."""
    places = [(at[0] or 0, at[2] or 0, at[1] or 0, at[3] or 0) for at in code.co_positions() if None not in at]
    places = [place for place in places if place[:2] != place[2:]]
    if not places:
        return None
    start, end = min(place[:2] for place in places), max(place[2:] for place in places)
    lines = linecache.getlines(code.co_filename)[start[0] - 1 : end[0]]
    if len(lines) != end[0] - start[0] + 1:
        return None
    content = [line.encode() for line in lines]  # columns are of bytes
    content[-1] = content[-1][: end[1]]
    content[0] = content[0][start[1] :]
    named = ", ".join(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    return f"lambda {named}: {b''.join(content).decode(errors='replace')}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


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
