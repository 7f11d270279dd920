"""Tasks and replies as messages: a head of JSON, and the tensors as safetensors. The same tensors sent to many sites
are bytes once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedproc.protocol.guard import Expected, Refused
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Phase, Reply, Task

VERSION = 2
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
}


@dataclass(frozen=True)
class Message:
    """What goes over a wire: the head says everything but the tensors."""

    head: bytes
    body: bytes = b""


def encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content: bytes = save(ready)
    return content


def encode_task(task: Task, tensors: bytes | None = None) -> Message:
    """A task; `tensors` are its payload's as bytes, where they are at hand."""
    expects = task.expects
    about = {
        "kind": task.kind.value,
        "client": task.client,
        "round": task.round,
        "counts": dict(task.payload.counts),
        "expects": {
            "tensors": {name: [list(shape), _dtype_name(dtype)] for name, (shape, dtype) in expects.tensors.items()},
            "counts": dict(expects.counts),
            "observe": sorted(expects.observe),
            "may_be_infinite": sorted(expects.may_be_infinite),
        },
        "settings": dict(task.settings),
        "phases": [[p.epochs, p.name, p.trains, p.returns, p.second, p.frozen] for p in task.phases],
        "means": task.means,
        "covariances": task.covariances,
        "run": task.run,
        "name": task.name,
        "last_accepted": task.last_accepted,
        "on_test": task.on_test,
        "own": task.own,
        "privacy": dict(task.privacy),
    }
    return Message(_head("task", about), encode_tensors(task.payload.tensors) if tensors is None else tensors)


def decode_task(message: Message) -> Task:
    about, tensors = read_head("task", message.head), _tensors(message.body)
    try:
        wanted = about["expects"]
        expects = Expected(
            {name: (tuple(shape), DTYPES[dtype]) for name, (shape, dtype) in wanted["tensors"].items()},
            wanted["counts"],
            frozenset(wanted["observe"]),
            frozenset(wanted["may_be_infinite"]),
        )
        return Task(
            kind=Kind(about["kind"]),
            client=about["client"],
            round=about["round"],
            payload=Payload(tensors, about["counts"]),
            expects=expects,
            settings=about["settings"],
            phases=tuple(Phase(*phase) for phase in about["phases"]),
            means=about["means"],
            covariances=about["covariances"],
            run=about["run"],
            name=about["name"],
            last_accepted=about["last_accepted"],
            on_test=about["on_test"],
            own=about["own"],
            privacy=about["privacy"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"not a task: {type(error).__name__}: {error}") from error


def encode_reply(reply: Reply) -> Message:
    payload = reply.payload
    about = {
        "answered": payload is not None,
        "counts": dict(payload.counts) if payload is not None else {},
        "refused": reply.refused,
        "seconds": dict(reply.seconds),
    }
    return Message(_head("reply", about), encode_tensors(payload.tensors) if payload is not None else b"")


def decode_reply(message: Message) -> Reply:
    about = read_head("reply", message.head)
    answered, counts, refused, seconds = (about.get(name) for name in ("answered", "counts", "refused", "seconds"))
    if not isinstance(answered, bool) or not isinstance(refused, str | None):
        raise Refused("not a reply: expected whether it was answered, and why not")
    if not isinstance(counts, dict) or not isinstance(seconds, dict):
        raise Refused("not a reply: expected counts and seconds by name")
    return Reply(Payload(_tensors(message.body), counts) if answered else None, refused, seconds)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _head(what: str, about: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, "what": what, **about}).encode()


def read_head(what: str, head: bytes) -> dict[str, Any]:
    """What a message says of itself; refused if it is no such message."""
    try:
        about: dict[str, Any] = json.loads(head)
        if about["what"] != what:
            raise Refused(f"is a {about['what']}, expected a {what}")
        if about["version"] != VERSION:
            raise Refused(f"written with version {about['version']} of the format, this one reads {VERSION}")
        return about
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"not a {what}: {type(error).__name__}: {error}") from error


def _tensors(body: bytes) -> dict[str, Tensor]:
    try:
        return load(body)
    except (KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        raise Refused(f"its tensors cannot be read: {type(error).__name__}: {error}") from error
