"""What cannot be private, and why: a method, or an option of the experiment."""

from __future__ import annotations

from torch import nn

from fedproc.methods.checked_server import CheckedServer, reason_of
from fedproc.methods.method import Method, Options

ALONE = "its server needs each client's answer by itself, and has only their noisy sum"


def objection(method: type[Method], options: Options, merge: str) -> str | None:
    """Why a method's answers cannot be told as one noisy sum, if they cannot."""
    if not method.federated:
        return "it has no federation, in which something could be hidden"
    if method.participants is not Method.participants:
        return "it says itself who takes part, and cohorts must be random"
    if merge != "mean":
        return f"--merge {merge} needs each client's weights by themselves, and the server has only their noisy sum"
    if method.align is not Method.align:
        return ALONE
    for base in method.__mro__:
        alone = issubclass(base, Method) and base is not Method and "collect" in vars(base)
        if alone and not vars(base).get("additive", False):
            return ALONE
    return reason_of(method, "unprotected", options)


def objection_to_passes(server: CheckedServer, rounds: int) -> str | None:
    """The same of what clients are asked for apart from training, which is not protected."""
    asked = [*server.opening(), *server.closing(), *(each for t in range(rounds) for each in server.passes(t))]
    return f"it asks clients for {asked[0].name} apart from training, which is not protected" if asked else None


def objection_to_network(network: nn.Module) -> str | None:
    """The same of running statistics, which clients do not send."""
    for module in network.modules():
        if getattr(module, "running_mean", None) is not None:
            return "batch-norm statistics of a client's images are not protected, and so not sent"
    return None
