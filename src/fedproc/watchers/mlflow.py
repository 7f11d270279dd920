"""Runs in MLflow: parameters, every number of every round, and the headline numbers.

The store is mlflow/mlflow.db in the command's folder, one for all runs of a comparison, unless MLFLOW_TRACKING_URI
names a server of the person's own. Nothing is sent anywhere else.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fedproc.errors import InputError
from fedproc.files import kind_of
from fedproc.runs.made import foreign
from fedproc.simulation.drive import Run
from fedproc.simulation.watching import Record
from fedproc.watchers.tracker import ID, Tracker, config_of, numbers, scalars

STORE = "mlflow.db"
SEVERAL = bytes.fromhex("d9d505f920a163d7")  # ends a journal of SQLite that is one of several; ours never is
TAG = "fedproc.folder"
METRICS, PARAMS, LETTERS = 1000, 100, 500  # the most that one batch may hold, and a parameter


class MLflow(Tracker):
    """Writes into mlflow/ of the command's folder."""

    name = "mlflow"
    every = 5.0

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is first imported
        try:
            import mlflow.entities as entities
            import sqlalchemy  # noqa: F401  # of the store
            from mlflow import MlflowClient
        except ImportError as error:
            raise self.missing(error.name or "mlflow") from error
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it tells of every table it makes
        self._entities, self._make_client = entities, MlflowClient
        self._client: Any = None

    def expect(self, path: Path) -> None:
        """A store's journal that names a journal of several stores has SQLite delete the file of that name."""
        super().expect(path)
        journal = path / self.name / f"{STORE}-journal"
        if journal.is_file() and _end(journal) == SEVERAL:
            what = "names a file elsewhere, which SQLite would delete"
            raise InputError(f"{journal}: {what}; move it away, or take another --out")

    def log(self, path: Path, label: str, records: Sequence[Record]) -> None:
        run = self._run(path, label)
        pairs = ((name, value, record["round"]) for record in records for name, value in scalars(record).items())
        self._metrics(run, pairs)

    def finished(self, run: Run, path: Path) -> None:
        known = self._run(path, run.label)
        found = ((f"result/{name}", value, len(run.metrics)) for name, value in numbers(run.result).items())
        self._metrics(known, found)
        self._client.set_terminated(known, "FINISHED" if run.result["status"] == "finished" else "FAILED")

    def _metrics(self, run: str, found: Iterable[tuple[str, float, int]]) -> None:
        now = int(time.time() * 1000)
        made = (self._entities.Metric(name, float(value), now, step) for name, value, step in found)
        for batch in _batches(made, METRICS):
            self._client.log_batch(run, metrics=batch)

    def _run(self, path: Path, label: str) -> str:
        """What MLflow calls the run in a folder; begun with its parameters where it knows none."""
        if self._client is None:
            store = self.folder(self.home).resolve() / STORE
            if (what := kind_of(store)) is not None:
                raise foreign(store, what)
            self._client = self._make_client(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{store}"))
        if (known := self.identity(path)) is not None:
            return known
        experiment = self._experiment()
        where = str(path.resolve())
        for old in self._client.search_runs([experiment], f"tags.`{TAG}` = '{where}'"):
            self._client.delete_run(old.info.run_id)  # of a folder that was started over
        made = self._client.create_run(experiment, run_name=label, tags={TAG: where})
        run = str(made.info.run_id)
        for batch in _batches(_parameters(config_of(path)), PARAMS):
            self._client.log_batch(run, params=[self._entities.Param(*pair) for pair in batch])
        self.put(path, ID, run)
        return run

    def _experiment(self) -> str:
        name = self.home.resolve().name
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        local = "MLFLOW_TRACKING_URI" not in os.environ
        artifacts = (self.folder(self.home).resolve() / "artifacts").as_uri() if local else None
        return str(self._client.create_experiment(name, artifact_location=artifacts))


def _end(file: Path) -> bytes:
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - len(SEVERAL)))
        return opened.read()


def _parameters(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if value is not None:
            yield name.replace("+", "-"), str(value)[:LETTERS]


def _batches(things: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(things)
    while batch := list(islice(left, size)):
        yield batch
