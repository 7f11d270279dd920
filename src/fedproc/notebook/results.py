"""What came out of runs, for notebooks: short to look at, as tables, figures and frames, and as a plain network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fedproc.comparison.compare import Comparison as Compared
from fedproc.comparison.compare import curves, sites_of
from fedproc.comparison.sites import SiteRow, compared, site_rows
from fedproc.errors import InputError, RunError
from fedproc.experiment import Experiment
from fedproc.figures.curves import draw_curves
from fedproc.networks.own import Encoder
from fedproc.report.sites import site_table
from fedproc.report.summary import accuracies, differences
from fedproc.report.tables import Shown, Table
from fedproc.runs.folder import client_model
from fedproc.runs.model import Given, Model, load_model, model_of
from fedproc.watchers.tracker import numbers

Record = dict[str, Any]
PER_CENT = ("final_accuracy", "best_accuracy", "last10_accuracy", "final_prototype_accuracy", "final_own_accuracy")


class Classifier(nn.Module):
    """A trained network as a plain module: from preprocessed images (N, C, H, W) to logits (N, K).

    `preprocess` makes these from pixels 0 to 255 of the size `size`: (pixels / 255 - mean) / std for each channel.
    `class_names` are the names of the K classes.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = model.network
        self.class_names = model.class_names
        self.channels, self.size = model.spec.channels, (model.spec.side, model.spec.side)
        self._dtype = model.spec.dtype
        self.register_buffer("middle", model.get_buffer("middle"))
        self.register_buffer("scale", model.get_buffer("scale"))

    @property
    def mean(self) -> list[float]:
        """Of each channel, of pixels from 0 to 1."""
        return [float(value) / 255 for value in self.get_buffer("middle").flatten()]

    @property
    def std(self) -> list[float]:
        return [1 / (255 * float(value)) for value in self.get_buffer("scale").flatten()]

    def preprocess(self, pixels: Tensor) -> Tensor:
        """Pixels 0 to 255, bytes or not, (N, C, H, W), as the network wants them."""
        expected = (self.channels, *self.size)
        if pixels.dim() != 4 or tuple(pixels.shape[1:]) != expected:
            raise InputError(f"pixels {tuple(pixels.shape)}: expected (N, {', '.join(map(str, expected))})")
        return (pixels.to(self._dtype) - self.get_buffer("middle")) * self.get_buffer("scale")

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.network(images)[1]
        return logits

    @torch.no_grad()
    def classify(self, pixels: Tensor) -> list[str]:
        """The class of each of these pictures, pixels 0 to 255."""
        training = self.training
        found = self.eval()(self.preprocess(pixels)).argmax(dim=-1).tolist()
        self.train(training)
        return [self.class_names[k] for k in found]


@dataclass(frozen=True, repr=False)
class Run:
    """A run: its config, headline numbers (`result`), one record per round (`metrics`), and its folder if it has one.
    `experiment` is None of one that was read from a folder.
    """

    label: str
    config: Record
    result: Record
    metrics: list[Record]
    path: Path | None = None
    experiment: Experiment | None = field(default=None, compare=False)
    models: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict, compare=False)
    about: Record = field(default_factory=dict, compare=False)

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def status(self) -> str:
        """finished, diverged, failed or unfinished."""
        return str(self.result.get("status", "unfinished"))

    @property
    def accuracy(self) -> float:
        """Of the last evaluated round, on the test set, or on validation samples where some were held out; not a number
        where there is none.
        """
        for record in reversed(self.metrics):
            if (found := record.get("test_accuracy", record.get("val_accuracy"))) is not None:
                return float(found)
        return math.nan

    def __repr__(self) -> str:
        return f"Run({self._words()}{f', {self.path}' if self.path else ''})"

    def _words(self) -> str:
        seen = "" if math.isnan(self.accuracy) else f": {100 * self.accuracy:.2f} %"
        end = "" if self.status == "finished" else f" ({self.status})"
        return f"{self.label}, seed {self.seed}{seen} after {len(self.metrics)} rounds{end}"

    def _repr_html_(self) -> str:
        where = f"<br><code>{escape(str(self.path))}</code>" if self.path else ""
        return f"<p><b>{escape(self._words())}</b>{where}</p>{self.table().html(caption=False)}"

    def table(self) -> Table:
        """The headline numbers; str() of it is Markdown, and `csv`, `latex` and `html` make other texts."""
        rows = []
        for name, value in numbers(self.result).items():
            if name.removeprefix("val_") in PER_CENT:
                rows.append([Shown(name.replace("_", " ")), Shown(f"{100 * value:.2f} %", value)])
        for name, digits in (("rounds", 0), ("seconds", 1), ("samples_per_second", 0)):
            if name in self.result:
                value = float(self.result[name])
                rows.append([Shown(name.replace("_", " ")), Shown(f"{value:,.{digits}f}", value)])
        if not rows:
            rows.append([Shown("status"), Shown(str(self.result.get("reason", self.status)))])
        return Table(f"{self.label} on {self.config['data']}", ["", "value"], rows)

    def sites(self) -> Table:
        """What each real site has of it on its own held-out images, beside what it has alone and fine-tuned."""
        seen = {self.seed: self.path} if self.path is not None else {}
        return _sites(site_rows([compared(self.label, seen, {})]), self.label)

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for each round."""
        rows = []
        for record in self.metrics:
            seconds = {f"seconds_{part}": spent for part, spent in record.get("seconds", {}).items()}
            rows.append({"round": record["round"], **numbers(record), **seconds})
        kind = "val" if self.config.get("val_fraction") else "test"
        return _frame(rows, ["round"], ["train_loss", f"{kind}_accuracy", f"{kind}_loss"])

    def plot(self) -> Figure:
        """Accuracy by round, as a matplotlib figure."""
        return draw_curves({self.label: [self.metrics]}).figure

    def model(self, client: int | None = None, network: str | Encoder | None = None) -> Classifier:
        """The trained network, or a client's own where the run kept it. `network` is your own encoder, where the run
        was read from a folder and had one.
        """
        name = "model.safetensors" if client is None else client_model(client)
        given: Given = network
        if network is None and self.experiment is not None:
            given = self.experiment.own.encoder or self.experiment.network
        if self.path is not None:
            return Classifier(load_model(self.path, name, given))
        if name not in self.models:
            kept = ", ".join(self.models) or "none, since it did not finish"
            raise RunError(f"{self.label}: has no {name}; the models that it has: {kept}")
        return Classifier(model_of(name, self.about, dict(self.models[name]), given))


@dataclass(frozen=True, repr=False)
class Comparison(Compared):
    """All rows, and their folder."""

    def __repr__(self) -> str:
        rows = []
        for row in self.rows:
            spread = row.spread(f"{self.prefix}final_accuracy")
            tail = "" if spread is None or spread[1] is None else f" ± {100 * spread[1]:.2f}"
            rows.append(f"{row.label} {'-' if spread is None else f'{100 * spread[0]:.2f}'}{tail} %")
        seeds = {run.seed for row in self.rows for run in row.runs}
        parts = [", ".join(rows), f"{len(seeds)} seeds", *self._reasons(), *([str(self.path)] if self.path else [])]
        return f"Comparison({'; '.join(parts)})"

    def _reasons(self) -> list[str]:
        """Why runs have no numbers: a line for each row and reason."""
        found = []
        for row in self.rows:
            for words, seeds in row.reasons.items():
                which = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
                found.append(f"{row.label}, {which}: {words}")
        return found

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self._tables())

    def _tables(self) -> Sequence[Table]:
        return [self.table(), *([self.differences()] if self.paired(f"{self.prefix}final_accuracy") else [])]

    def table(self) -> Table:
        """Accuracies: mean and sample deviation over seeds; below them why runs have none."""
        table = accuracies(self)
        return replace(table, note=" ".join(filter(None, (table.note, ". ".join(self._reasons())))))

    def differences(self) -> Table:
        """Each row's paired difference to the reference."""
        if not self.paired(f"{self.prefix}final_accuracy"):
            ended = "; ".join(self._reasons())
            what = f"runs ended early ({ended}): mend that first" if ended else "take more seeds"
            raise InputError(f"no row has two finished seeds in common with {self.reference}: {what}")
        return differences(self)

    def sites(self) -> Table:
        """What each real site has of each row on its own held-out images, beside what it has alone and fine-tuned."""
        return _sites(sites_of(self), "the comparison")

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row for each finished run: the numbers of its result."""
        rows = [{"label": row.label, "seed": run.seed, **numbers(run.result)} for row in self.rows for run in row.runs]
        ended = (run for row in self.rows for run in row.ended if isinstance(run, Run))
        prefix = "val_" if any(run.config.get("val_fraction") for run in ended) else ""
        accuracies = [f"{prefix}{name}" for name in ("final_accuracy", "best_accuracy", "last10_accuracy")]
        return _frame(rows, ["label", "seed"], ["rounds", *accuracies, "seconds"])

    def plot(self) -> Figure:
        """Learning curves: mean over seeds with an interval, as a matplotlib figure."""
        return draw_curves(curves(self)).figure


def _sites(rows: Sequence[SiteRow], what: str) -> Table:
    if not rows:
        raise InputError(
            f"{what}: has no sites to compare; expected finished runs in a folder (out=...), of data that name sites "
            "with held-out images of their own"
        )
    return site_table(rows)


def _frame(rows: Sequence[Record], index: list[str], columns: Sequence[str]) -> Any:
    """A DataFrame of these rows; without any, an empty one of the columns that rows always have."""
    made = _pandas().DataFrame(rows, columns=None if rows else [*index, *columns])
    return made.set_index(index)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_frame: the package pandas is not installed; `pip install pandas`") from error
    return pandas
