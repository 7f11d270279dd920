"""A method of one's own given as a class, as from a cell of a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fedproc.errors import InputError
from fedproc.methods import METHODS
from fedproc.methods.method import Method

NAME = re.compile("[a-z0-9][a-z0-9-]*")


def own_method(given: object) -> type[Method]:
    """The class, if it can be a method."""
    if not (isinstance(given, type) and issubclass(given, Method)):
        raise InputError(f"--method {given!r}: expected a method's name, or a subclass of FedAvg")
    name = vars(given).get("name")
    if given not in METHODS.values() and not (isinstance(name, str) and NAME.fullmatch(name)):
        shown = f"its name is {name!r}" if name is not None else "it has no `name` of its own"
        raise InputError(f"--method {given.__name__}: {shown}; expected one of a-z, 0-9 and -, as in name = 'mine'")
    return given


def with_own(methods: Mapping[str, type[Method]], own: Iterable[type[Method]]) -> dict[str, type[Method]]:
    """Methods by name, and those given as classes."""
    found = dict(methods)
    for method in own:
        if found.get(method.name, method) is not method:
            whose = "one of ours" if method.name in METHODS else "another one's"
            raise InputError(
                f"--method {method.__name__}: its name {method.name} is the name of {whose}; choose another"
            )
        found[method.name] = method
    return found
