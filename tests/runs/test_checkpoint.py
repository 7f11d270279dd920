from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedproc import RunError
from fedproc.runs import checkpoint


def tensors() -> dict[str, torch.Tensor]:
    return {
        "big": torch.arange(5_000_000, dtype=torch.float32),
        "wide": torch.arange(3, dtype=torch.float64),
        "counters": torch.tensor([[1, 2], [3, 4]]),
        "known": torch.tensor([True, False]),
        "none": torch.zeros(0),
        "scalar": torch.tensor(3),
    }


def values(number: int) -> dict[str, object]:
    nobody = {"files": {}, "last": {}}
    return {
        "round": number,
        "sizes": [5],
        "accepted": [0],
        "bytes_up": 1,
        "bytes_down": 2,
        "clients": nobody,
        "lines": {},
    }


def test_shards_cut_the_buffer_and_stay_small(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 3, tensors(), values(3))
    shards = sorted((tmp_path / "round-000003").glob("*.safetensors"))
    assert len(shards) == 2 and all(s.stat().st_size < 16_000_000 for s in shards)
    found = checkpoint.load_newest(tmp_path, 3)
    assert found is not None
    assert found.values.round == 3 and found.values.sizes == [5] and found.complaints == []
    for name, tensor in tensors().items():
        assert found.tensors[name].dtype == tensor.dtype and torch.equal(found.tensors[name], tensor)


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        checkpoint.save(tmp_path, number, {"a": torch.tensor([number])}, values(number))
        checkpoint.keep_last(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-000002", "round-000010"]


@pytest.mark.parametrize("damage", ["flip", "cut", "no index", "bad json", "a value", "no shard"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(damage: str, tmp_path: Path) -> None:
    for number in (1, 2):
        checkpoint.save(tmp_path, number, {"a": torch.tensor([number])}, values(number))
    newest = tmp_path / "round-000002"
    shard, index = newest / "shard-000.safetensors", newest / "checkpoint.json"
    if damage == "flip":
        content = bytearray(shard.read_bytes())
        content[-1] ^= 1
        shard.write_bytes(bytes(content))
    elif damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "no index":
        index.unlink()
    elif damage == "bad json":
        index.write_text("{")
    elif damage == "a value":
        index.write_text(json.dumps({**json.loads(index.read_text()), "values": {**values(2), "sizes": "many"}}))
    else:
        shard.unlink()
    found = checkpoint.load_newest(tmp_path, 2)
    assert found is not None
    assert found.values.round == 1 and "round-000002" in found.complaints[0]


def test_another_format_is_refused_in_words(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"a": torch.tensor([1])}, values(1))
    index = tmp_path / "round-000001" / "checkpoint.json"
    index.write_text(json.dumps({**json.loads(index.read_text()), "schema": 1}))
    with pytest.raises(RunError, match=r"another version of fedproc \(format 1, this one has 2\).*fresh starts over"):
        checkpoint.load_newest(tmp_path, 1)
    assert index.exists()


def test_the_newest_up_to_a_round(tmp_path: Path) -> None:
    for number in (3, 5):
        checkpoint.save(tmp_path, number, {"a": torch.tensor([number])}, values(number))
    for up_to, round_number in ((9, 5), (5, 5), (4, 3)):
        found = checkpoint.load_newest(tmp_path, up_to)
        assert found is not None and found.values.round == round_number
    assert checkpoint.load_newest(tmp_path, 2) is None


def test_nothing_whole_left_is_an_error_and_nothing_at_all_is_none(tmp_path: Path) -> None:
    assert checkpoint.load_newest(tmp_path / "checkpoint", 9) is None
    checkpoint.save(tmp_path, 1, {"a": torch.tensor([1])}, values(1))
    (tmp_path / "round-000001" / "checkpoint.json").unlink()
    with pytest.raises(RunError, match="no whole checkpoint is left, fresh starts over"):
        checkpoint.load_newest(tmp_path, 9)
