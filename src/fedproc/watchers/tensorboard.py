"""Runs in TensorBoard: every number of every round, and the trained network's embedding of test images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedproc.data import Images
from fedproc.errors import InputError
from fedproc.runs.model import load_model
from fedproc.simulation.drive import Run
from fedproc.simulation.preparation import Library
from fedproc.simulation.watching import Watched, Watcher

FOLDER = "tensorboard"
WRITTEN, EMBEDDED = "rounds-written", "round-embedded"  # files that hold how far we are
EACH, MOST = 50, 1000  # test images per class, and in all
KINDS = (("accuracy", ("accuracy", "macro_f1", "auc")), ("loss", ("loss", "cross_entropy")))


class TensorBoard:
    """Passes everything on to another watcher, and writes it into tensorboard/ of the run folders."""

    def __init__(self, other: Watcher) -> None:
        try:
            import torch.utils.tensorboard
        except ImportError as error:
            raise InputError(
                "--log tensorboard: the package tensorboard is not installed; pip install 'fedproc[tensorboard]'"
            ) from error
        self._make = torch.utils.tensorboard.SummaryWriter
        self._other = other
        self._writers: dict[Path, Any] = {}
        self._written: dict[Path, int] = {}

    def begin(self, runs: Sequence[Watched], about: str, notes: Sequence[str]) -> None:
        self._other.begin(runs, about, notes)
        for run in runs:
            if run.path is not None:
                self._catch_up(run.path, run.records)

    def update(self, run: Watched) -> None:
        self._other.update(run)
        if run.path is not None:
            self._catch_up(run.path, run.records)

    def end(self) -> None:
        self._other.end()
        for writer in self._writers.values():
            writer.close()

    def finish(self, run: Run) -> None:
        """Catch up with a run that has ended, and add the embedding of its model."""
        if run.path is None:
            return
        self._catch_up(run.path, run.metrics)
        done = int(run.result.get("rounds", 0))
        untouched = run.experiment.val_fraction > 0  # the test set, which runs that choose settings must not use
        if (run.path / "model.safetensors").exists() and not untouched and _number(run.path, EMBEDDED) != done:
            self._embed(run.path, Library().images(run.experiment), done)
            (run.path / FOLDER / EMBEDDED).write_text(f"{done}\n")
        if run.path in self._writers:
            self._writers.pop(run.path).close()

    def _catch_up(self, path: Path, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the rounds that are missing; a continued run replaces those after the point where it continues."""
        if path not in self._written:
            self._written[path] = min(_number(path, WRITTEN), len(records))
        if len(records) <= self._written[path]:  # fewer: a worker does rounds again, with the same numbers
            return
        for record in records[self._written[path] :]:
            for name, value in scalars(record).items():
                self._writer(path).add_scalar(name, value, record["round"])
        self._written[path] = len(records)
        self._writer(path).flush()
        (path / FOLDER / WRITTEN).write_text(f"{len(records)}\n")

    def _writer(self, path: Path) -> Any:
        if path not in self._writers:
            self._writers[path] = self._make(str(path / FOLDER), purge_step=self._written[path] + 1)
        return self._writers[path]

    def _embed(self, path: Path, images: Images, step: int) -> None:
        labels = images.test.labels
        each = max(1, min(EACH, MOST // images.classes))
        index = np.concatenate([np.flatnonzero(labels == k)[:each] for k in range(images.classes)])
        pixels = torch.from_numpy(images.test.images[index])
        model = load_model(path)
        with torch.no_grad():
            z = torch.cat([model(part)[1] for part in torch.split(pixels, 500)])
        names = [images.class_names[k] for k in labels[index]]
        self._writer(path).add_embedding(z, metadata=names, label_img=pixels / 255, global_step=step, tag="z")


def _number(path: Path, name: str) -> int:
    """The round in a file of the folder, 0 where there is none."""
    try:
        return int((path / FOLDER / name).read_text())
    except (FileNotFoundError, ValueError):
        return 0


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round by tag: accuracy/, loss/, seconds/ and run/."""
    found = {f"seconds/{part}": spent for part, spent in record["seconds"].items()}
    for name, value in record.items():
        if name == "round" or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        kind = next((kind for kind, ends in KINDS if any(end in name for end in ends)), "run")
        found[f"{kind}/{name}"] = value
    return found
