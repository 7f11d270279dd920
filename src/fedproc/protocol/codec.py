"""Payloads, tasks and replies as bytes: safetensors, with everything that is no tensor as JSON in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedproc.protocol.guard import Expected, Refused
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Phase, Reply, Task

VERSION = 1
KEY = "fedproc"
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
}


def encode_payload(payload: Payload) -> bytes:
    return _pack("payload", payload.tensors, {"counts": dict(payload.counts)})


def decode_payload(content: bytes) -> Payload:
    tensors, about = _unpack("payload", content)
    return Payload(tensors, about["counts"])


def encode_task(task: Task) -> bytes:
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
        "phases": [[p.epochs, p.name, p.trains, p.returns, p.second] for p in task.phases],
        "means": task.means,
        "covariances": task.covariances,
        "run": task.run,
        "name": task.name,
        "last_accepted": task.last_accepted,
    }
    return _pack("task", task.payload.tensors, about)


def decode_task(content: bytes) -> Task:
    tensors, about = _unpack("task", content)
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
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"not a task: {type(error).__name__}: {error}") from error


def encode_reply(reply: Reply) -> bytes:
    payload = reply.payload
    about = {
        "answered": payload is not None,
        "counts": dict(payload.counts) if payload is not None else {},
        "refused": reply.refused,
        "seconds": dict(reply.seconds),
    }
    return _pack("reply", payload.tensors if payload is not None else {}, about)


def decode_reply(content: bytes) -> Reply:
    tensors, about = _unpack("reply", content)
    try:
        payload = Payload(tensors, about["counts"]) if about["answered"] else None
        return Reply(payload, about["refused"], about["seconds"])
    except KeyError as error:
        raise Refused(f"not a reply: {error} is missing") from error


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _pack(what: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content: bytes = save(ready, metadata={KEY: json.dumps({"version": VERSION, "what": what, **about})})
    return content


def _unpack(what: str, content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name and the rest; whatever is wrong with the bytes is a reason to refuse them."""
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        about: dict[str, Any] = json.loads(header["__metadata__"][KEY])
        if about["version"] != VERSION:
            raise Refused(f"written with version {about['version']} of the format, this one reads {VERSION}")
        if about["what"] != what:
            raise Refused(f"is a {about['what']}, expected a {what}")
        return load(content), about
    except (KeyError, TypeError, ValueError, RecursionError, SafetensorError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"not a {what}: {type(error).__name__}: {error}") from error
