"""An encoder of one's own given as an object: a class, a function that makes one, or a module that is there already,
whose weights are then what training starts from.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from torch import nn

from fedproc.errors import InputError
from fedproc.own_code import FORM, NOTEBOOK, PLAIN, sha256_of, sha256_of_tensor

Encoder = type[nn.Module] | Callable[[], nn.Module] | nn.Module


@dataclass(frozen=True)
class OwnEncoder:
    """What makes the encoder; two of the same name and source are the same."""

    name: str  # module:Class, as for an encoder by import path
    sha256: str
    given: Any = field(compare=False, repr=False)
    source: str = field(compare=False, repr=False)  # as a model file has it: without the weights of a module

    @classmethod
    def of(cls, given: Any) -> OwnEncoder:
        if not callable(given):
            raise InputError(
                f"--network {given!r}: expected a network's name, an nn.Module, or a class or function that makes one "
                "without arguments"
            )
        if isinstance(given, nn.Module):
            source = _of_module(given)
            return cls(_name(type(given)), _with_weights(source, given), given, _formed(source))
        sha256 = sha256_of(given)
        return cls(_name(given), sha256, given, _formed(sha256))

    def differs(self, source: str | None) -> bool | None:
        """Whether its source is another than a model file says; None where that cannot be told, as of an older file."""
        if source is None or source.partition(":")[0] != str(FORM):
            return None
        return source != self.source

    def made(self) -> nn.Module:
        """A new encoder, the caller's own."""
        if isinstance(self.given, nn.Module):
            return copy.deepcopy(self.given).cpu()
        try:
            made = self.given()
        except Exception as error:  # any error of a person's own code is bad input
            raise InputError(f"--network {self.name}: cannot make the encoder: {error}") from error
        if not isinstance(made, nn.Module):
            raise InputError(f"--network {self.name}: expected an nn.Module, got {type(made).__name__}")
        return made.cpu()


def importable(given: Any) -> str | None:
    """The import path of a class or function of a module, by which everybody can have it; None of a notebook's."""
    module, name = getattr(given, "__module__", NOTEBOOK), str(getattr(given, "__qualname__", "."))
    if module == NOTEBOOK or not name.isidentifier() or getattr(sys.modules.get(module), name, None) is not given:
        return None
    return f"{module}:{name}"


def _name(given: Any) -> str:
    if isinstance(given, functools.partial):
        given = given.func
    return f"{getattr(given, '__module__', NOTEBOOK)}:{getattr(given, '__qualname__', type(given).__name__)}"


def _formed(sha256: str) -> str:
    return f"{FORM}:{sha256}"


def _of_module(module: nn.Module) -> str:
    """Its parts' source and plain attributes."""
    kinds = {type(part): part for part in module.modules()}
    plain = [
        (name, attribute, value)
        for name, part in module.named_modules()
        for attribute, value in vars(part).items()
        if isinstance(value, (*PLAIN, FunctionType)) and not attribute.startswith("_") and attribute != "training"
    ]
    return sha256_of(*kinds, repr(module), plain)


def _with_weights(source: str, module: nn.Module) -> str:
    digest = hashlib.sha256(source.encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name} {sha256_of_tensor(tensor)}".encode())
    return digest.hexdigest()
