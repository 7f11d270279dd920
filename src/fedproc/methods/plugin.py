"""A method of one's own from a file outside the package: every FedAvg subclass with a name in it is one."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path

from fedproc.errors import InputError
from fedproc.methods import METHODS, OURS
from fedproc.methods.fedavg import FedAvg

LOADED: dict[str, str] = {}  # name of a method and the SHA-256 of the file it came from


def load_plugin(path: str | Path) -> list[str]:
    """Run the file and add its methods; returns their names. Loading the same file again changes nothing."""
    file = Path(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"--plugin {file}: cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    again = [name for name, known in LOADED.items() if known == digest]
    if again:
        return again
    spec = importlib.util.spec_from_file_location(f"fedproc_plugin_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError(f"--plugin {file}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any error of a person's own code is bad input
        raise InputError(f"--plugin {file}: {type(error).__name__}: {error}") from error
    made = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, FedAvg) and thing.__module__ == module.__name__
    ]
    made = [method for method in made if "name" in vars(method)]
    if not made:
        raise InputError(f"--plugin {file}: defines no method: expected a subclass of FedAvg with a `name`")
    for method in made:
        if method.name in {ours.name for ours in OURS}:
            raise InputError(f"--plugin {file}: its method {method.name} has the name of one of ours; choose another")
        METHODS[method.name] = method
        LOADED[method.name] = digest
    return [method.name for method in made]
