"""A run is a folder, and the same command continues it.

config.json         every resolved value, and the fingerprint of the data
environment.json    versions, device, how the work was laid out
partition.json      how many samples of each class each client holds
split.csv           which of a person's own image files is for training and which for testing
metrics.jsonl       one line per round, each with a checksum of itself and of all before it
sites.jsonl         correct answers and images of each class at each site, where clients are real sites
checkpoint/         the last two while running, the final one after
predictions.csv     what the model says of each held-out image, where that was asked for
model.safetensors   the trained network, prototypes, class names, normalisation
result.json         the headline numbers; its presence means the run is over
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from fedproc.cells import safe_cell
from fedproc.data import SOURCES
from fedproc.errors import InputError, RunError, with_flags
from fedproc.experiment import FREE, IMPLIED
from fedproc.files import TEMPORARY, naming, sweep, write_file, write_json
from fedproc.given import flag
from fedproc.runs import checkpoint, lines, made
from fedproc.runs.checkpoint import Checkpoint
from fedproc.runs.client_states import damage
from fedproc.runs.lock import Lock, expect_folder
from fedproc.runs.model_file import packed
from fedproc.runs.result import as_one_of_many, evaluated
from fedproc.runs.saved import LINES, OURS, completed, confirmation, read_result
from fedproc.runs.schema import (
    FORMAT,
    EnvironmentFile,
    content_checksum,
    read,
    read_config,
    read_json,
)

FILES = (
    "config.json",
    "environment.json",
    "partition.json",
    "split.csv",
    "metrics.jsonl",
    "confusion.jsonl",
    "sites.jsonl",
    "predictions.csv",
    "test-predictions.csv",
    "sites.csv",
    "model.safetensors",
    "averaged.safetensors",
    "model.onnx",
    "models",
    "clients",
    "tensorboard",
    "mlflow",
    "wandb",
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
        self._checksums: dict[str, list[tuple[int, str]]] = {}  # of each file's last lines: round and checksum
        try:
            with naming(path):
                made.expect_no_links(path)
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
            with self._way_out():
                config = read_json(self._file("config.json")) or {}
        except InputError:
            if self._file("metrics.jsonl").exists():
                raise
            return False
        return set(config) >= OURS

    def prepare(self, fresh: bool) -> None:
        """Sweep what a killed process left half-written, and everything if the run is to start over."""
        with naming(self.path):
            sweep(self.path, made.TOP)
            if fresh:
                self._clear()

    def _file(self, name: str) -> Path:
        return self.path / name

    def _clear(self) -> None:
        made.remove(self.path, *reversed(FILES))  # config.json goes last: without it the folder is no run

    def check(self, config: Record, fixed_rounds: str | None) -> None:
        """Refuse what cannot continue the run that is here, with nothing changed: another config, damaged files.

        `fixed_rounds` says why another number of rounds cannot continue the run, if it cannot.
        """
        known = self._known()
        self.result()
        self.confusions()
        self.sites()
        self.environment()
        if known is None:
            return
        begun = bool(self.metrics())
        for path, old, new in differences(known, config):
            if path == "rounds" or (path == "plugin_sha256" and not begun):
                continue
            if path == "plugin_sha256":
                what = "--plugin: the file" if config["plugin"] else f"--method {config['method']}: its source"
                raise InputError(f"{what} has changed since the run in {self.path}; --fresh starts over")
            if path == "network_sha256":
                changed = f"its source has changed since the run in {self.path}"
                raise InputError(f"--network {config['network']}: {changed}; --fresh starts over")
            if path == "start_from_sha256":
                changed = f"not the model that the run in {self.path} began with"
                raise InputError(f"--start-from {config['start_from']}: {changed}; --fresh starts over")
            named = {known["data"], config["data"]} & set(SOURCES)  # which have no fit of their own
            if path == "fingerprint" or (path == "fit" and named):
                raise InputError(f"--data {config['data']}: not the data that the run in {self.path} was trained on")
            raise InputError(
                f"{flag(path)} {_shown(new)}: the run in {self.path} has {_shown(old)}; "
                "take that, another --out, or --fresh to start over"
            )
        if known["rounds"] != config["rounds"]:
            self._check_rounds(known["rounds"], int(config["rounds"]), fixed_rounds)

    def finished(self, config: Record) -> bool:
        """Whether the run that is here was finished, with this very config."""
        try:
            known, result = self._known(), self.result()
        except InputError:  # damaged
            return False
        return known is not None and (result or {}).get("status") == "finished" and not differences(known, config)

    def _known(self) -> Record | None:
        """The config that is here, as this version would write it."""
        with self._way_out():
            found = read_config(self._file("config.json"))
            return None if found is None else completed(found)

    def settle(self, config: Record) -> None:
        """Write config.json; a run that was checked and is to have another number of rounds is reopened for it."""
        known = self._known()
        if known is not None and known.get("plugin_sha256") != config.get("plugin_sha256"):
            self._clear()  # nothing was trained yet with the file as it was
            known = None
        if known is not None and known["rounds"] != config["rounds"]:
            self._reopen(int(known["rounds"]), int(config["eval_every"]))
        if known is None or (known != config and self.result() is None):
            self._lock.check()
            whole = {"format": FORMAT, **config}
            write_json(self._file("config.json"), {**whole, "checksum": content_checksum(whole)})

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
        if self.result() is not None:
            self._lock.check()
            last, irregular = self.metrics()[-1:], old % eval_every != 0
            records = [*self.metrics()[:-1], *(as_one_of_many(record, irregular) for record in last)]
            new = {name: [r for r in self._lines(name) if not irregular or r["round"] != old] for name in LINES}
            new["metrics.jsonl"] = records
            accepted = {name: [lines.checksum_of(each)] for name, each in new.items()}
            checkpoint.confirm(self._file("checkpoint"), old, accepted)
            for name, each in new.items():
                lines.rewrite(self._file(name), each)
        made.remove(self.path, "predictions.csv", "test-predictions.csv", "sites.csv")
        self.forget_result()
        made.remove(self.path, "models", "model.onnx")

    def forget_result(self) -> None:
        """The run is not over after all."""
        self._file("result.json").unlink(missing_ok=True)

    @contextmanager
    def _way_out(self) -> Iterator[None]:
        """Say beside what is wrong with a file what to do."""
        try:
            yield
        except InputError as error:
            raise InputError(f"{with_flags(error)}; remove {self.path} to have this run made again") from error

    def environment(self) -> EnvironmentFile | None:
        with self._way_out():
            return read(self._file("environment.json"), EnvironmentFile)

    def write_environment(self, environment: Record) -> None:
        write_json(self._file("environment.json"), environment)

    def write_partition(
        self, class_names: Sequence[str], counts: Sequence[Sequence[int]], client_names: Sequence[str] = ()
    ) -> None:
        """One line per client; their names, where each has one. A file that is there must say the same, and may grow
        where clients with names have joined.
        """
        rows = ",\n    ".join(json.dumps(list(row)) for row in counts)
        names = {"class_names": class_names, "client_names": client_names if len(client_names) == len(counts) else []}
        heads = "".join(f'  "{name}": {json.dumps(list(each))},\n' for name, each in names.items() if each)
        text = f'{{\n{heads}  "counts": [\n    {rows}\n  ]\n}}\n'
        path = self._file("partition.json")
        if path.exists():
            with self._way_out():
                there = read_json(path)
                if there == json.loads(text):
                    return
                if there is None or not client_names or not _continues(there, json.loads(text)):
                    raise InputError(f"{path}: not who holds what in this run")
        write_file(self._file("partition.json"), lambda temporary: temporary.write_text(text, encoding="utf-8"))

    def write_split(self, rows: Sequence[Sequence[str]]) -> None:
        """Which file is a training and which a test image, as it was when the run began."""
        path = self._file("split.csv")

        def fill(temporary: Path) -> None:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerow(("path", "class", "site", "group", "split"))
                csv.writer(file).writerows([safe_cell(cell) for cell in row] for row in rows)

        if rows and not path.exists():
            write_file(path, fill)

    def result(self) -> Record | None:
        with self._way_out():
            return read_result(self.path, self.metrics())

    def write_result(self, result: Record) -> None:
        self._lock.check()
        ends = {confirmation(name): self._last(name)[1] for name in LINES}
        whole = {**result, **{name: end for name, end in ends.items() if end}}
        write_json(self._file("result.json"), {**whole, "checksum": content_checksum(whole)})

    def metrics(self) -> list[Record]:
        """One record per round."""
        return self._lines("metrics.jsonl")

    def confusions(self) -> list[Record]:
        """One confusion matrix (true, predicted) per evaluated round."""
        return self._lines("confusion.jsonl")

    def _lines(self, name: str) -> list[Record]:
        """The records of all whole lines; a line cut off by a kill is not one."""
        with self._way_out():
            return lines.read_lines(self._file(name), LINES[name])

    def _last(self, name: str, up_to: int | None = None) -> tuple[int, str]:
        """The round and the checksum of the last line, of those up to a round."""
        known = self._checksums.setdefault(name, [(0, "")])
        return [each for each in known if up_to is None or each[0] <= up_to][-1]

    def sites(self) -> list[Record]:
        """What was seen at each site, of each evaluated round."""
        return self._lines("sites.jsonl")

    def append_lines(self, said: Mapping[str, Record]) -> None:
        """A round's record, last, and what goes to files beside metrics.jsonl."""
        self._lock.check()
        for name, line in said.items():
            checksum = lines.append_line(self._file(name), line, self._last(name)[1])
            self._checksums[name] = [*self._checksums[name][-2:], (int(line["round"]), checksum)]

    def save_checkpoint(
        self, round_number: int, tensors: Mapping[str, Tensor], values: Record, later: Mapping[str, Record]
    ) -> list[Path]:
        """Write one and keep the last two; returns those that are there. `later`: lines of this round that are written
        only when the checkpoint is there.
        """
        self._lock.check()
        confirmed = {name: [self._last(name, round_number)[1]] for name in LINES}  # one line may be ahead of it
        confirmed |= {name: [lines.checksum_after(line, self._last(name)[1])] for name, line in later.items()}
        values = {**values, "lines": confirmed, **({"untold": dict(later)} if later else {})}
        checkpoint.save(self._file("checkpoint"), round_number, tensors, values)
        checkpoint.keep_last(self._file("checkpoint"), 2)
        return checkpoint.paths(self._file("checkpoint"))

    def finish_checkpoints(self) -> list[Path]:
        """Keep the final one alone."""
        checkpoint.keep_last(self._file("checkpoint"), 1)
        return checkpoint.paths(self._file("checkpoint"))

    def resume(self, rounds: int, once: bool = False) -> Checkpoint | None:
        """The newest whole checkpoint, with the lines cut back to its round. The last of `rounds` is evaluated: where
        it was passed without that, it is done again. `once`: no round that has a checkpoint is done again, since its
        noise would be another; its lines, if they are not there, are taken from the checkpoint.
        """
        records = self.metrics()
        done = [record for record in records if record["round"] == rounds]
        up_to = rounds - 1 if done and not evaluated(done[0]) else rounds
        told = len(records) if once else 0
        if up_to < told:
            raise RunError(
                f"--rounds {rounds}: round {rounds} of {self.path} was not evaluated, and done again its noise would "
                "be another; take more rounds, or --fresh starts over"
            )
        found = self.newest_checkpoint(rounds if once else up_to, told)
        at = found.values.round if found else 0
        for name in LINES:
            records = [record for record in self._lines(name) if record["round"] <= at]
            if once and found and name in found.values.untold and (records or [{"round": 0}])[-1]["round"] < at:
                records.append(found.values.untold[name])
            if name == "metrics.jsonl" and len(records) != at:
                with self._way_out():
                    raise InputError(f"{self._file(name)}: fewer than the {at} rounds done")
            confirmed = found.values.lines.get(name, [""]) if found else [""]
            if lines.checksum_of(records) not in confirmed:
                with self._way_out():
                    raise InputError(f"{self._file(name)}: not the lines that the checkpoint of round {at} confirms")
            self._checksums[name] = [(at, lines.rewrite(self._file(name), records))]
        return found

    def newest_checkpoint(self, up_to: int, told: int = 0) -> Checkpoint | None:
        """The newest of a round or before that is whole, the clients' states that it names included; refused if it is
        of a round before `told`.
        """
        folder, clients = self._file("checkpoint"), self._file("clients")
        return checkpoint.load_newest(folder, up_to, lambda values: damage(clients, values.clients), told)

    def write_model(self, name: str, tensors: Mapping[str, Tensor], description: Record) -> None:
        """A trained network as a file of its own."""
        self._lock.check()
        content = packed(tensors, description)
        path = self._file(name)
        with naming(path):
            path.parent.mkdir(exist_ok=True)
            sweep(path.parent, r"(model|averaged|client-\d{3,})\.safetensors")
        write_file(path, lambda temporary: temporary.write_bytes(content))


def _continues(old: Record, new: Record) -> bool:
    """Whether a partition only has clients that another had not."""
    same = all(new.get(name) == value for name, value in old.items() if name not in ("counts", "client_names"))
    rows = [(new.get(name, [])[: len(old.get(name, []))], old.get(name, [])) for name in ("counts", "client_names")]
    return same and all(one == other for one, other in rows)


def client_model(client: int) -> str:
    """Where a run folder holds a client's own model."""
    return f"models/client-{client:03d}.safetensors"


def differences(old: Record, new: Record, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(field, old, new) wherever two configs say different things that matter."""
    found = []
    for name in sorted(set(old) | set(new), key=lambda name: (name != "method", name == "fingerprint", name)):
        before, after = old.get(name), new.get(name)
        if not prefix and (name in FREE or name in IMPLIED or name == "format"):
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            found.append((prefix + name, before, after))
    return found


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)
