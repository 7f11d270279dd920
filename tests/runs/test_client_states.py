from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import contents, toy_images, work

from fedproc import RunError
from fedproc.runs.client_states import ClientStates, Holdings
from fedproc.runs.schema import ClientFiles

CPU = torch.device("cpu")


def tensor(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((100,), float(value))}  # 400 bytes


def test_a_commit_counts_once_the_round_is_over() -> None:
    store = ClientStates(1 << 20, CPU)
    store.commit(3, 0, tensor(1.0))
    assert store.get(3) is None
    store.adopt(store.settled())
    found = store.get(3)
    assert found is not None and found["a"][0] == 1.0
    assert store.get(4) is None


def test_past_the_limit_the_longest_absent_go_to_disk(tmp_path: Path) -> None:
    store = ClientStates(900, CPU, tmp_path)
    for round_number, client in enumerate((5, 6, 7, 5)):
        store.commit(client, round_number, tensor(client + round_number))
        store.adopt(store.settled())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "client-000005-round-000000.safetensors",  # from before client 5 answered again
        "client-000006-round-000001.safetensors",
    ]
    assert sorted(path.split("/")[0] for path in store.holdings.tensors()) == ["5", "7"]
    for client, value in ((5, 8.0), (6, 7.0), (7, 9.0)):
        found = store.get(client)
        assert found is not None and found["a"].tolist() == [value] * 100
    store.sweep(store.holdings, [])
    assert [path.name for path in tmp_path.iterdir()] == ["client-000006-round-000001.safetensors"]


def test_it_goes_through_a_checkpoint(tmp_path: Path) -> None:
    store = ClientStates(500, CPU, tmp_path)
    for client in range(3):
        store.commit(client, 0, tensor(client))
    store.adopt(store.settled())
    other = ClientStates(500, CPU, tmp_path)
    other.adopt(restored(store))
    for client in range(3):
        found = other.get(client)
        assert found is not None and found["a"][0] == client
    assert other.holdings.values() == store.holdings.values()


def restored(store: ClientStates) -> Holdings:
    values = ClientFiles.model_validate_json(json.dumps(store.holdings.values()))
    return Holdings.restored(store.holdings.tensors(), values)


def test_a_damaged_or_missing_file_is_named(tmp_path: Path) -> None:
    store = ClientStates(0, CPU, tmp_path)
    store.commit(2, 0, tensor(1.0))
    store.adopt(store.settled())
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(RunError, match=r"client-000002.*wrong checksum"):
        store.get(2)
    path.unlink()
    with pytest.raises(RunError, match=r"client-000002.*cannot be read"):
        store.get(2)


def test_without_a_folder_a_temporary_one_is_used() -> None:
    store = ClientStates(0, CPU)
    store.commit(0, 0, tensor(4.0))
    store.adopt(store.settled())
    found = store.get(0)
    assert found is not None and found["a"][0] == 4.0


@pytest.mark.parametrize("method", ["scaffold", "moon", "solo"])
def test_memory_or_disk_give_the_same_run(method: str, tmp_path: Path) -> None:
    images = toy_images()
    given = {"method": method, "sample": 0.6, "solo": {"epochs": 6}}
    work(tmp_path / "memory", images, **given)
    work(tmp_path / "disk", images, client_memory=0, **given)
    memory, disk = contents(tmp_path / "memory"), contents(tmp_path / "disk")
    assert memory["metrics.jsonl"] == disk["metrics.jsonl"] and memory["result.json"] == disk["result.json"]
    assert any(name.startswith("clients/") for name in disk) and not any(n.startswith("clients/") for n in memory)
    models = [name for name in memory if name.startswith("model")]
    assert models and all(memory[name] == disk[name] for name in models)
    assert len(models) == (5 if method == "solo" else 1)
