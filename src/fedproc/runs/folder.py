"""A run is a folder, and the same command continues it.

config.json         every resolved value, and the fingerprint of the data
environment.json    versions, device, how the work was laid out
metrics.jsonl       one line a round
checkpoint/         the last two while running, the final one after
model.safetensors   the trained network, prototypes, class names, normalisation
result.json         the headline numbers; its presence means the run is over
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedproc.errors import InputError, RunError
from fedproc.experiment import FREE, IMPLIED, flag
from fedproc.methods.fedavg import FedAvg
from fedproc.runs import checkpoint
from fedproc.runs.atomic import naming, sweep, write_file, write_json

FILES = ("config.json", "environment.json", "metrics.jsonl", "model.safetensors", "result.json", "checkpoint")
Record = dict[str, Any]


class Lock:
    """One process at a time in a folder: a lock on the folder itself, which ends with the process."""

    def __init__(self, path: Path) -> None:
        with naming(path):
            path.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            raise RunError(f"{path}: another process is at work in this folder; wait or take another --out") from error

    def release(self) -> None:
        os.close(self._handle)


class RunFolder:
    """The files of one run, opened for work."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        if path.exists() and not path.is_dir():
            raise InputError(f"--out {path}: a file is in the way, expected a folder")
        self.path = path
        self._lock = Lock(path)
        try:
            with naming(path):
                sweep(path)
                strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in FILES)
                if strangers and not self._file("config.json").exists():
                    raise InputError(f"--out {path}: holds {strangers[0]}, expected a run folder or an empty one")
                if fresh:
                    self._clear()
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        self._lock.release()

    def _file(self, name: str) -> Path:
        return self.path / name

    def _clear(self) -> None:
        for name in reversed(FILES):  # config.json goes last: without it the folder is no run
            target = self._file(name)
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)

    def settle(self, config: Record, method: FedAvg) -> None:
        """Write config.json, or hold the one that is there against this config."""
        known = self._read("config.json")
        if known is None:
            write_json(self._file("config.json"), config)
            return
        for path, old, new in differences(known, config):
            if path == "rounds":
                self._more_rounds(int(old), int(new), method)
                continue
            if path == "fingerprint":
                raise InputError(f"--data {config['data']}: not the data that the run in {self.path} was trained on")
            raise InputError(
                f"{flag(path)} {_shown(new)}: the run in {self.path} has {_shown(old)}; "
                "take that, another --out, or --fresh to start over"
            )
        if known != config:
            write_json(self._file("config.json"), config)

    def _more_rounds(self, old: int, new: int, method: FedAvg) -> None:
        reason = method.depends_on_rounds()
        if reason is not None:
            raise InputError(
                f"--rounds {new}: the run in {self.path} has {old} and cannot be continued with another number, "
                f"since {reason}; take {old}, another --out, or --fresh to start over"
            )
        done = len(self.metrics())
        if new < done:
            raise InputError(f"--rounds {new}: the run in {self.path} has done {done}; take at least that, or --fresh")
        self._file("result.json").unlink(missing_ok=True)

    def _read(self, name: str) -> Record | None:
        path = self._file(name)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: cannot be read ({error}); --fresh starts over") from error
        if not isinstance(found, dict):
            raise RunError(f"{path}: expected a JSON object; --fresh starts over")
        return found

    def environment(self) -> Record | None:
        return self._read("environment.json")

    def write_environment(self, environment: Record) -> None:
        write_json(self._file("environment.json"), environment)

    def result(self) -> Record | None:
        return self._read("result.json")

    def write_result(self, result: Record) -> None:
        write_json(self._file("result.json"), result)

    def metrics(self) -> list[Record]:
        """The records of all whole lines; a line cut off by a kill is not one."""
        path = self._file("metrics.jsonl")
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")
        try:
            return [json.loads(line) for line in lines[:-1]]
        except ValueError as error:
            raise RunError(f"{path}: a line is not JSON ({error}); --fresh starts over") from error

    def append_metrics(self, record: Record) -> None:
        path = self._file("metrics.jsonl")
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def save_checkpoint(self, round_number: int, tensors: Mapping[str, Tensor], values: Record) -> None:
        checkpoint.save(self._file("checkpoint"), round_number, tensors, values)
        checkpoint.keep_last(self._file("checkpoint"), 2)

    def finish_checkpoints(self) -> None:
        checkpoint.keep_last(self._file("checkpoint"), 1)

    def resume(self) -> tuple[dict[str, Tensor], Record, list[str]] | None:
        """The newest whole checkpoint, with metrics.jsonl cut back to its round."""
        found = checkpoint.load_newest(self._file("checkpoint"))
        done = int(found[1]["round"]) if found else 0
        records = [record for record in self.metrics() if record["round"] <= done]
        if len(records) != done:
            raise RunError(f"{self._file('metrics.jsonl')}: {len(records)} rounds of {done}; --fresh starts over")
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        path = self._file("metrics.jsonl")
        if path.exists() and path.read_text(encoding="utf-8") != text:
            write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
        return found

    def write_model(self, tensors: Mapping[str, Tensor], description: Record) -> None:
        """One metadata key only: safetensors orders several differently in each process."""
        ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        content = save(ready, metadata={"fedproc": json.dumps(description)})
        write_file(self._file("model.safetensors"), lambda temporary: temporary.write_bytes(content))


def differences(old: Record, new: Record, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(field, old, new) wherever two configs say different things that matter."""
    found = []
    for name in sorted(set(old) | set(new), key=lambda name: (name != "method", name)):
        before, after = old.get(name), new.get(name)
        if not prefix and (name in FREE or name in IMPLIED):
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append((prefix + name, before, after))
    return found


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)
