"""A run is a folder, and the same command continues it.

config.json         every resolved value, and the fingerprint of the data
environment.json    versions, device, how the work was laid out
partition.json      how many samples of each class each client holds
metrics.jsonl       one line a round
checkpoint/         the last two while running, the final one after
model.safetensors   the trained network, prototypes, class names, normalisation
result.json         the headline numbers; its presence means the run is over
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedproc.errors import InputError
from fedproc.experiment import FREE, IMPLIED, flag
from fedproc.runs import checkpoint
from fedproc.runs.atomic import TEMPORARY, naming, sweep, write_file, write_json
from fedproc.runs.kept import OURS, read_lines, read_object, read_result
from fedproc.runs.place import Lock, expect_folder
from fedproc.runs.result import without_evaluation

FILES = (
    "config.json",
    "environment.json",
    "partition.json",
    "metrics.jsonl",
    "confusion.jsonl",
    "model.safetensors",
    "averaged.safetensors",
    "model.onnx",
    "models",
    "clients",
    "tensorboard",
    "result.json",
    "checkpoint",
)
Record = dict[str, Any]


class RunFolder:
    """The files of one run, opened for work."""

    def __init__(self, path: Path) -> None:
        expect_folder(path)
        self.path = path
        self._made = not path.exists()
        self._lock = Lock(path)
        try:
            with naming(path):
                names = sorted(e.name for e in path.iterdir() if not e.name.startswith(TEMPORARY + "config.json"))
            if names and not self._is_ours():
                raise InputError(f"--out {path}: holds {names[0]}, expected a run folder or an empty one")
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """A folder that was made for nothing goes again."""
        if self._made:
            with suppress(OSError):  # most often it holds a run
                self.path.rmdir()
        self._lock.release()

    def _is_ours(self) -> bool:
        """Whether config.json is one that we wrote, so that nobody else's files are taken for a run. One that cannot be
        read, beside a run's metrics, is a damaged run's.
        """
        try:
            config = self._read("config.json") or {}
        except InputError:
            if self._file("metrics.jsonl").exists():
                raise
            return False
        return set(config) >= OURS

    def prepare(self, fresh: bool) -> None:
        """Sweep what a killed process left half-written, and everything if the run is to start over."""
        with naming(self.path):
            sweep(self.path)
            if fresh:
                self._clear()

    def _file(self, name: str) -> Path:
        return self.path / name

    def _clear(self) -> None:
        for name in reversed(FILES):  # config.json goes last: without it the folder is no run
            target = self._file(name)
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)

    def check(self, config: Record, fixed_rounds: str | None) -> None:
        """Refuse what cannot continue the run that is here, with nothing changed: another config, damaged files.

        `fixed_rounds` says why another number of rounds cannot continue the run, if it cannot.
        """
        known = self._read("config.json")
        self.result()
        self.confusions()
        if known is None:
            return
        for path, old, new in differences(known, config):
            if path == "rounds":
                continue
            if path == "plugin":
                raise InputError(f"--plugin: the file has changed since the run in {self.path}; --fresh starts over")
            if path == "fingerprint":
                raise InputError(f"--data {config['data']}: not the data that the run in {self.path} was trained on")
            raise InputError(
                f"{flag(path)} {_shown(new)}: the run in {self.path} has {_shown(old)}; "
                "take that, another --out, or --fresh to start over"
            )
        if not isinstance(rounds := known.get("rounds"), int):
            with self._way_out():
                raise InputError(f"{self._file('config.json')}: rounds {_shown(rounds)}: expected a whole number")
        if rounds != config["rounds"]:
            self._check_rounds(rounds, int(config["rounds"]), fixed_rounds)

    def settle(self, config: Record) -> None:
        """Write config.json; a run that was checked and is to have another number of rounds is reopened for it."""
        known = self._read("config.json")
        if known is not None and known["rounds"] != config["rounds"]:
            self._reopen(int(known["rounds"]), int(config["eval_every"]))
        if known is None or (known != config and self.result() is None):
            write_json(self._file("config.json"), config)

    def _check_rounds(self, old: int, new: int, reason: str | None) -> None:
        if reason is not None:
            raise InputError(
                f"--rounds {new}: the run in {self.path} has {old} and cannot be continued with another number, "
                f"since {reason}; take {old}, another --out, or --fresh to start over"
            )
        done = len(self.metrics())
        if new < done:
            raise InputError(f"--rounds {new}: the run in {self.path} has done {done}; take at least that, or --fresh")

    def _reopen(self, old: int, eval_every: int) -> None:
        """The old last round was evaluated, and its clients' models kept, only because it was the last."""
        if self.result() is not None and old % eval_every:
            records = [without_evaluation(r) if r["round"] == old else r for r in self.metrics()]
            self._rewrite("metrics.jsonl", records)
            self._rewrite("confusion.jsonl", [r for r in self.confusions() if r["round"] != old])
        self._file("result.json").unlink(missing_ok=True)
        shutil.rmtree(self._file("models"), ignore_errors=True)
        self._file("model.onnx").unlink(missing_ok=True)

    def _read(self, name: str) -> Record | None:
        with self._way_out():
            return read_object(self._file(name))

    @contextmanager
    def _way_out(self) -> Iterator[None]:
        """Say beside what is wrong with a file what to do."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{error}; remove {self.path} to have this run made again") from error

    def environment(self) -> Record | None:
        return self._read("environment.json")

    def write_environment(self, environment: Record) -> None:
        write_json(self._file("environment.json"), environment)

    def has_partition(self) -> bool:
        return self._file("partition.json").exists()

    def write_partition(
        self, class_names: Sequence[str], counts: Sequence[Sequence[int]], client_names: Sequence[str] = ()
    ) -> None:
        """One line a client; their names, where each has one."""
        lines = ",\n    ".join(json.dumps(list(row)) for row in counts)
        names = {"class_names": class_names, "client_names": client_names if len(client_names) == len(counts) else []}
        heads = "".join(f'  "{name}": {json.dumps(list(told))},\n' for name, told in names.items() if told)
        text = f'{{\n{heads}  "counts": [\n    {lines}\n  ]\n}}\n'
        write_file(self._file("partition.json"), lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def result(self) -> Record | None:
        with self._way_out():
            return read_result(self.path, self.metrics())

    def write_result(self, result: Record) -> None:
        write_json(self._file("result.json"), result)

    def metrics(self) -> list[Record]:
        """One record a round."""
        return self._lines("metrics.jsonl")

    def confusions(self) -> list[Record]:
        """One confusion matrix (true, predicted) an evaluated round."""
        return self._lines("confusion.jsonl")

    def _lines(self, name: str) -> list[Record]:
        """The records of all whole lines; a line cut off by a kill is not one."""
        with self._way_out():
            return read_lines(self._file(name))

    def append_metrics(self, record: Record, confusion: Record | None) -> None:
        if confusion is not None:
            self._append("confusion.jsonl", confusion)
        self._append("metrics.jsonl", record)

    def _append(self, name: str, record: Record) -> None:
        path = self._file(name)
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def save_checkpoint(self, round_number: int, tensors: Mapping[str, Tensor], values: Record) -> list[Path]:
        """Write one and keep the last two; returns those that are there."""
        checkpoint.save(self._file("checkpoint"), round_number, tensors, values)
        checkpoint.keep_last(self._file("checkpoint"), 2)
        return checkpoint.paths(self._file("checkpoint"))

    def finish_checkpoints(self) -> list[Path]:
        """Keep the final one alone."""
        checkpoint.keep_last(self._file("checkpoint"), 1)
        return checkpoint.paths(self._file("checkpoint"))

    def resume(self) -> tuple[dict[str, Tensor], Record, list[str]] | None:
        """The newest whole checkpoint, with metrics.jsonl cut back to its round."""
        found = checkpoint.load_newest(self._file("checkpoint"))
        done = int(found[1]["round"]) if found else 0
        if self._cut("metrics.jsonl", done) != done:
            with self._way_out():
                raise InputError(f"{self._file('metrics.jsonl')}: fewer than the {done} rounds done")
        self._cut("confusion.jsonl", done)
        return found

    def _cut(self, name: str, done: int) -> int:
        """Drop the lines of later rounds; returns how many are left."""
        records = [record for record in self._lines(name) if record["round"] <= done]
        self._rewrite(name, records)
        return len(records)

    def _rewrite(self, name: str, records: list[Record]) -> None:
        text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)
        path = self._file(name)
        if path.exists() and path.read_text(encoding="utf-8") != text:
            write_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write_model(self, name: str, tensors: Mapping[str, Tensor], description: Record) -> None:
        """One metadata key only: safetensors orders several differently in each process."""
        ready = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        content = save(ready, metadata={"fedproc": json.dumps(description)})
        path = self._file(name)
        with naming(path):
            path.parent.mkdir(exist_ok=True)
            sweep(path.parent)
        write_file(path, lambda temporary: temporary.write_bytes(content))


def client_model(client: int) -> str:
    """Where a run folder holds a client's own model."""
    return f"models/client-{client:03d}.safetensors"


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
