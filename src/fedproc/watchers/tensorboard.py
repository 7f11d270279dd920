"""Runs in TensorBoard: every number of every round, and the trained network's embedding of test images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedproc.data import Images
from fedproc.networks.own import OwnEncoder
from fedproc.runs.model import load_model
from fedproc.simulation.drive import Run
from fedproc.simulation.preparation import Library
from fedproc.simulation.watching import Record
from fedproc.watchers.tracker import Tracker, scalars

EMBEDDED = "round-embedded"  # a file that holds of which round the embedding is
EACH, MOST = 50, 1000  # test images per class, and in all


class TensorBoard(Tracker):
    """Writes into tensorboard/ of the run folders."""

    name = "tensorboard"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        try:
            import torch.utils.tensorboard
        except ImportError as error:
            raise self.missing("tensorboard") from error
        self._make = torch.utils.tensorboard.SummaryWriter
        self._writers: dict[Path, Any] = {}

    def log(self, path: Path, label: str, records: Sequence[Record]) -> None:
        for record in records:
            for name, value in scalars(record).items():
                self._writer(path).add_scalar(name, value, record["round"])
        self._writer(path).flush()

    def finished(self, run: Run, path: Path) -> None:
        """Add the embedding of its model, unless it must not use the test set."""
        done = int(run.result.get("rounds", 0))
        there = (path / "model.safetensors").exists() and run.experiment.val_fraction == 0
        if there and self.number(path, EMBEDDED) != done:
            network = run.experiment.own.encoder or run.experiment.network
            self._embed(path, Library().images(run.experiment), done, network)
            self.put(path, EMBEDDED, done)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, path: Path) -> Any:
        """A continued run replaces the rounds after the point where it continues."""
        if path not in self._writers:
            self._writers[path] = self._make(str(self.folder(path)), purge_step=self.written(path) + 1)
        return self._writers[path]

    def _embed(self, path: Path, images: Images, step: int, network: str | OwnEncoder) -> None:
        labels = images.test.labels
        each = max(1, min(EACH, MOST // images.classes))
        index = np.concatenate([np.flatnonzero(labels == k)[:each] for k in range(images.classes)])
        pixels = torch.from_numpy(images.test.images[index])
        model = load_model(path, network=network)
        with torch.no_grad():
            z = torch.cat([model(part)[1] for part in torch.split(pixels, 500)])
        names = [images.class_names[k] for k in labels[index]]
        self._writer(path).add_embedding(z, metadata=names, label_img=pixels / 255, global_step=step, tag="z")
