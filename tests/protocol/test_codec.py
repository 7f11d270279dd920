"""What crosses, as bytes and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedproc.protocol import codec
from fedproc.protocol.guard import Expected, Refused
from fedproc.protocol.payload import Payload
from fedproc.protocol.task import Kind, Phase, Reply, Task

TENSORS = {
    "params": torch.randn(3, 5, generator=torch.Generator().manual_seed(0)),
    "wide": torch.arange(4, dtype=torch.float64),
    "counts": torch.tensor([1, 2**60]),
    "known": torch.tensor([True, False]),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "nothing": torch.zeros(0),
    "scalar": torch.tensor(3.5),
    "infinite": torch.tensor([torch.inf, torch.nan]),
    "turned": torch.arange(6.0).view(2, 3).T,
}


def same(one: Payload, other: Payload) -> None:
    assert dict(one.counts) == dict(other.counts) and set(one.tensors) == set(other.tensors)
    for name, tensor in one.tensors.items():
        found = other.tensors[name]
        assert found.dtype == tensor.dtype and found.shape == tensor.shape
        assert torch.equal(found.nan_to_num(7.0), tensor.nan_to_num(7.0))


def test_tasks_come_back() -> None:
    task = Task(
        Kind.TRAIN,
        client=7,
        round=3,
        payload=Payload(TENSORS, {"a": 1}),
        expects=Expected(
            {"params": ((3, 5), torch.float32), "known": ((2,), torch.bool)},
            {"samples": 12, "steps": None},
            frozenset({"known"}),
            frozenset({"params"}),
        ),
        settings={"lr": 0.1, "alpha": 1 / 3},
        phases=(Phase(2, "head", "classifier", False), Phase(3, frozen=7), Phase(1, "own", second=True)),
        means="training",
        covariances=True,
        run="hospital-1",
        name="Zürich",
        last_accepted=2,
        own=True,
    )
    found = codec.decode_task(codec.encode_task(task))
    same(task.payload, found.payload)
    assert replace(found, payload=task.payload) == task


@pytest.mark.parametrize("reply", [Reply(Payload(TENSORS, {"samples": 1}), None, {"train": 1.5}), Reply(None, "busy")])
def test_replies_come_back(reply: Reply) -> None:
    found = codec.decode_reply(codec.encode_reply(reply))
    assert (found.refused, dict(found.seconds)) == (reply.refused, dict(reply.seconds))
    if reply.payload is None:
        assert found.payload is None
    else:
        assert found.payload is not None
        same(reply.payload, found.payload)


def test_what_is_no_message_is_refused_and_nothing_else_happens() -> None:
    good = codec.encode_reply(Reply(Payload(TENSORS, {"samples": 1})))
    for body in (b"", b"no", good.body[:-1], good.body[:20], b"\xff" * 64):
        with pytest.raises(Refused, match="tensors cannot be read"):
            codec.decode_reply(replace(good, body=body))
    for head in (b"", b"no", b"[]", good.head[:-1], b"[" * 100_000, good.head.replace(b"answered", b"unanswered")):
        with pytest.raises(Refused):
            codec.decode_reply(replace(good, head=head))
    with pytest.raises(Refused, match="is a reply, expected a task"):
        codec.decode_task(good)
    with pytest.raises(Refused, match="written with version 9"):
        codec.decode_reply(replace(good, head=good.head.replace(b'version": 2', b'version": 9')))


def test_the_same_tensors_are_bytes_once() -> None:
    task = Task(Kind.EVALUATE, 1, 0, Payload(TENSORS), Expected({}))
    tensors = codec.encode_tensors(task.payload.tensors)
    assert codec.encode_task(task, tensors).body is tensors
    same(task.payload, codec.decode_task(codec.encode_task(task, tensors)).payload)
