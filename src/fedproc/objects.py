"""What an experiment was given as objects instead of by name: methods' classes and an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedproc.methods import METHODS
from fedproc.methods.method import Method
from fedproc.methods.own import own_method
from fedproc.networks.own import OwnEncoder, importable
from fedproc.own_code import packed, sha256_of, unpacked

Given = dict[str, Any]


@dataclass(frozen=True)
class Own:
    """A person's own methods and encoder, as objects. In a worker, which knows no notebook's source, `hashes` are what
    the driver knows of the methods' source, by name.
    """

    methods: tuple[type[Method], ...] = ()
    encoder: OwnEncoder | None = None
    hashes: tuple[tuple[str, str], ...] = ()

    def taken(self, given: Given) -> tuple[Own, Given]:
        """Values of an experiment with names in the place of objects, and the objects beside those that are here."""
        own, method, network = self, given.get("method"), given.get("network")
        if method is not None and not isinstance(method, str):
            own, given = own.with_methods([method]), {**given, "method": own_method(method).name}
        if network is not None and not isinstance(network, str):
            path = importable(network)
            if path is None:
                encoder = OwnEncoder.of(network)
                own, path = replace(own, encoder=encoder), encoder.name
            given = {**given, "network": path}
        elif isinstance(network, str) and own.encoder is not None and network != own.encoder.name:
            own = replace(own, encoder=None)
        return own, given

    def with_methods(self, methods: Sequence[object]) -> Own:
        """And those among these that are classes of a person's own."""
        classes = [own_method(method) for method in methods if not isinstance(method, str)]
        new = tuple(method for method in classes if method not in METHODS.values() and method not in self.methods)
        return replace(self, methods=self.methods + new)

    def hash_of(self, method: str) -> str | None:
        """The SHA-256 of a method's source, where it was given as a class."""
        found = next((each for each in self.methods if each.name == method), None)
        return None if found is None else dict(self.hashes).get(method) or sha256_of(found)

    def message(self) -> Given:
        """For a worker."""
        if not self.methods and self.encoder is None:
            return {}
        found: Given = {"methods": [packed(method, f"--method {method.name}") for method in self.methods]}
        found["hashes"] = [(method.name, self.hash_of(method.name)) for method in self.methods]
        if self.encoder is not None:
            given = packed(self.encoder.given, "--network")
            found["encoder"] = {"name": self.encoder.name, "sha256": self.encoder.sha256, "given": given}
            found["encoder"]["source"] = self.encoder.source
        return found

    @classmethod
    def of(cls, message: Given) -> Own:
        encoder = message.get("encoder")
        made = None if encoder is None else OwnEncoder(**{**encoder, "given": unpacked(encoder["given"])})
        hashes = tuple((name, sha256) for name, sha256 in message.get("hashes", ()))
        return cls(tuple(map(unpacked, message.get("methods", ()))), made, hashes)


def named(methods: Any) -> list[str]:
    """Methods by their names, however they are given."""
    return [method if isinstance(method, str) else own_method(method).name for method in methods]
