"""A method of one's own from a file outside the package: every Method subclass with a name in it is one.

Nothing is registered: whoever needs the methods of a file asks for them with its path. What a file's content gave once
is remembered by that content.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from fedproc.errors import InputError
from fedproc.methods import METHODS
from fedproc.methods.method import Method
from fedproc.methods.own import NAME


def all_methods(plugins: Sequence[Path] = ()) -> Mapping[str, type[Method]]:
    """Our methods and those of the files."""
    found = dict(METHODS)
    for path in plugins:
        for method in plugin_methods(path):
            if method.name in found and found[method.name] is not method:
                whose = "one of ours" if method.name in METHODS else "another plugin's"
                raise InputError(f"--plugin {path}: its method {method.name} has the name of {whose}; choose another")
            found[method.name] = method
    return found


def plugin_hash(name: str, plugins: Sequence[Path]) -> str | None:
    """The SHA-256 of the file that a method comes from; None of ours."""
    for path in plugins:
        if any(method.name == name for method in plugin_methods(path)):
            return hashlib.sha256(_content(path)).hexdigest()
    return None


def plugin_methods(path: Path) -> tuple[type[Method], ...]:
    """The methods that a file defines."""
    return _run(str(path), _content(path))


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise InputError(f"--plugin {path}: expected a Python file (.py)")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"--plugin {path}: cannot be read: {error.strerror}") from error


@lru_cache(maxsize=64)
def _run(path: str, content: bytes) -> tuple[type[Method], ...]:
    digest = hashlib.sha256(content).hexdigest()
    spec = importlib.util.spec_from_file_location(f"fedproc_plugin_{Path(path).stem}_{digest[:12]}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"--plugin {path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any error of a person's own code is bad input
        raise InputError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    made = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Method) and thing.__module__ == module.__name__
    ]
    made = [method for method in made if "name" in vars(method)]
    if not made:
        raise InputError(f"--plugin {path}: defines no method: expected a subclass of FedAvg with a `name`")
    for method in made:
        if not isinstance(method.name, str) or NAME.fullmatch(method.name) is None:
            raise InputError(f"--plugin {path}: its method {method.name!r}: expected a name of a-z, 0-9 and -")
    return tuple(made)
