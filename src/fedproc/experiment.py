"""The Experiment: one typed, validated tree that says everything a run depends on.

Its fields are the flags of the command line and the keys of a TOML file. What is not given follows the
preset, then the data set; every value is resolved when the object is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from fedproc.data import source_of
from fedproc.data.augment import AUGMENTATIONS
from fedproc.data.partition import PARTITIONS, clients_in_file
from fedproc.errors import InputError, with_flags
from fedproc.methods import METHODS
from fedproc.methods.ccvr import Recalibration, with_ccvr
from fedproc.methods.merges import MERGES
from fedproc.methods.method import Method, Options
from fedproc.methods.plugin import all_methods
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.networks import NETWORKS

Given = dict[str, Any]

AUTHOR_CODE: Given = {"horizon": 100, "first_round": "cross-entropy", "weighting": "count", "pass_mode": "training"}

PRESETS: dict[str, tuple[str, Given]] = {
    "paper": ("the algorithm as the paper writes it", {}),
    "author_code": (
        "the choices of the authors' released code where they differ from the paper",
        {
            "normalize_z": True,
            "fedproc": AUTHOR_CODE,
            "scaffold+fedproc": AUTHOR_CODE,
            "two-stage": {"weighting": "count", "pass_mode": "training"},
        },
    ),
}

CHOICES: dict[str, dict[str, Any]] = {
    "partition": PARTITIONS,
    "augment": AUGMENTATIONS,
    "merge": MERGES,
    "server_step": SERVER_STEPS,
}

NORMALIZED_FROM = 0.1  # the learning rate at which raw z was seen to collapse

# Recorded, but a run may be continued with other values: they change speed, not the experiment.
FREE = frozenset(
    {
        "plugin",
        "partition_file",
        "encoder_weights",
        "precision",
        "device",
        "executor",
        "lanes",
        "data_dir",
        "checkpoint_every",
        "client_memory",
    }
)
# Not compared by themselves: the resolved values and the data's fingerprint say the same more exactly.
IMPLIED = frozenset({"preset", "seed", "data", "image_size", "test_fraction"})


class Experiment(BaseModel):
    """One federated training run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str = Field("fedproc", description="what to run", examples=list(METHODS))
    plugin: tuple[Path, ...] = Field((), description="Python file with methods of your own; can be given again")
    preset: str = Field("paper", description="named set of defaults", examples=list(PRESETS))
    data: str = Field("fashion-mini", description="data set by name, or the path of your own image folder or CSV file")
    data_dir: Path | None = Field(None, description="folder that holds the data set's files; never downloads then")
    image_size: int | None = Field(
        None, ge=16, le=1024, description="side that your own images are scaled to (default: theirs, or 32)"
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="test share of an image folder without train/ and test/")
    clients: int = Field(10, ge=1, description="number of clients m")
    partition: str = Field("dirichlet", description="how the data is dealt out", examples=list(PARTITIONS))
    beta: float = Field(0.5, gt=0, description="Dirichlet concentration; smaller is more skewed")
    classes_per_client: int = Field(2, ge=1, description="classes a client holds under --partition shards")
    partition_file: Path | None = Field(None, description="JSON of indices, one list per client, for --partition file")
    min_size: int = Field(10, ge=1, description="fewest samples a client may hold")
    val_fraction: float = Field(
        0.0, ge=0, lt=1, description="validation share of each client; above 0 the test set is not touched"
    )
    rounds: int = Field(100, ge=1, description="communication rounds T")
    epochs: int = Field(10, ge=1, description="local epochs E per round")
    batch_size: int = Field(64, ge=1, description="batch size B")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate falls over the rounds"
    )
    lr_floor: float = Field(0.0, ge=0, description="what the learning rate falls to")
    lr: float = Field(0.01, gt=0, description="learning rate (follows the data set: 0.01, cifar100 0.1)")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of the clients' SGD, zeroed each round")
    weight_decay: float = Field(1e-5, ge=0, description="weight decay of the clients' SGD")
    calibrate: float = Field(
        0.0, ge=0, description="gamma of the logits' calibration by each client's own class shares; 0: none"
    )
    calibrate_prototypes: float | None = Field(
        None, ge=0, description="the same for the prototype loss's similarities (default: --calibrate)"
    )
    average_weights: float = Field(
        0.0, ge=0, lt=1, description="d of averaged weights a <- d a + (1 - d) w over rounds, evaluated beside; 0: none"
    )
    send_averaged: bool = Field(False, description="send the averaged weights to the clients")
    merge: str | None = Field(
        None, description="how clients' weights become one (default: the method's)", examples=list(MERGES)
    )
    server_step: str | None = Field(
        None,
        description="how the server moves to the merged weights (default: the method's)",
        examples=list(SERVER_STEPS),
    )
    server_beta: float = Field(0.9, ge=0, lt=1, description="momentum of --server-step other than replace")
    server_lr: float = Field(
        1.0,
        gt=0,
        description="learning rate of --server-step other than replace; for adam, yogi and adagrad take less, say 0.01",
    )
    ccvr: Recalibration = Field(
        "none",
        description="after the last round, another classifier from all clients' class means and covariances, evaluated "
        "beside the model: retrained on samples of Gaussians, or by discriminant analysis",
    )
    ccvr_samples: int = Field(2000, ge=1, description="samples of each class for --ccvr sampled")
    sample: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in each round")
    network: str = Field(
        "simple-cnn",
        description="encoder by name or import path module:Class (follows the data set: simple-cnn, cifar100 resnet50)",
        examples=list(NETWORKS),
    )
    norm: Literal["batch", "group"] = Field("batch", description="normalisation layers of a ResNet")
    encoder_weights: Path | None = Field(
        None, description="safetensors file with weights for the encoder to start from"
    )
    width: int = Field(64, ge=1, description="channels of a ResNet's first stage")
    normalize_z: bool = Field(
        False, description=f"classify the L2-normalised z (follows --lr: true from {NORMALIZED_FROM} on)"
    )
    augment: str = Field(
        "none",
        description="random moves of training images (follows the data set: none, cifar10 crop-flip, "
        "cifar100 crop-flip-rotate)",
        examples=list(AUGMENTATIONS),
    )
    normalize: Literal["known", "measured"] = Field(
        "known", description="mean and deviation of pixels: the data set's known ones, or of the training images"
    )
    smallest_class: int = Field(
        1, ge=1, description="fewest images of a class of which a client sends a prototype and a count"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="sets data seed and model seed")
    data_seed: int = Field(0, ge=0, lt=2**32, description="seed of partition and splits (follows --seed)")
    model_seed: int = Field(0, ge=0, lt=2**32, description="seed of everything else (follows --seed)")
    eval_every: int = Field(1, ge=1, description="evaluate every k rounds, and always after the last")
    target_accuracy: float | None = Field(
        None, gt=0, le=1, description="report the rounds and bytes until this accuracy was first seen"
    )
    client_memory: int = Field(
        2048, ge=0, description="MiB of client states that may stay in memory between rounds; the rest goes to disk"
    )
    keep_clients: bool = Field(
        False, description="save the clients' own models of the last round, as models/client-NNN.safetensors"
    )
    checkpoint_every: int = Field(5, ge=1, description="write a checkpoint every k rounds")
    dtype: Literal["float32", "float64"] = Field("float32", description="arithmetic of training")
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto",
        description="of products on a GPU: all bits of float32, tf32 or bf16 (auto: tf32; streamed lanes bf16)",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    executor: Literal["auto", "serial", "stacked", "streamed"] = Field(
        "auto",
        description="clients one by one on each core, stacked along an axis of every tensor, or on parallel streams "
        "of a GPU (auto: by device and network)",
    )
    lanes: int | Literal["auto"] = Field("auto", description="clients side by side, a number or auto")
    options: SerializeAsAny[Options] = Field(default_factory=Options, description="options of the method")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InputError(_sentence(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any) -> Given:
        """Precedence: given, preset, data set, and the plain defaults last."""
        given: Given = {key.replace("-", "_"): value for key, value in dict(values).items() if value is not None}
        plugins = given.get("plugin", ())
        plugins = [plugins] if isinstance(plugins, (str, Path)) else plugins
        if not isinstance(plugins, list | tuple) or not all(isinstance(path, (str, Path)) for path in plugins):
            raise ValueError(f"--plugin {plugins}: expected the names of Python files")
        given["plugin"] = tuple(map(Path, plugins))
        methods = all_methods(given["plugin"])
        for name in set(methods) - set(METHODS):
            if name.replace("-", "_") in cls.model_fields:
                raise ValueError(f"--plugin: its method {name} has the name of an option; choose another")
        by_method = {name: given.pop(name.replace("-", "_"), {}) for name in methods}
        method = _named("method", given.get("method", "fedproc"), methods)
        _, preset = PRESETS[_named("preset", given.get("preset", "paper"), PRESETS)]
        for name, allowed in CHOICES.items():
            if name in given:
                _named(name, given[name], allowed)
        source = source_of(str(given.get("data", "fashion-mini")))
        followed: Given = {"network": source.network, "lr": source.lr, "augment": source.augment}
        merged = {**followed, **{k: v for k, v in preset.items() if k not in methods}, **given}
        merged.setdefault("data_seed", merged.get("seed", 0))
        merged.setdefault("model_seed", merged.get("seed", 0))
        merged.setdefault("normalize_z", _number(merged["lr"]) >= NORMALIZED_FROM)
        if "options" not in merged:
            below = source.options(_clients(merged))
            made = {
                name: _options(name, kind, {**below.get(name, {}), **preset.get(name, {})}, by_method[name])
                for name, kind in methods.items()
            }
            merged["options"] = made[method]
        return merged

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if ":" not in self.network:
            _named("network", self.network, NETWORKS)
        for name, known in (("merge", MERGES), ("server_step", SERVER_STEPS)):
            own = getattr(self.method_type, name)
            if own not in known:
                raise ValueError(f"--method {self.method}: its {name} {own}: expected {_one_of(list(known))}")
        if not self.method_type.federated:
            for name in ("merge", "server_step"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{flag(name)} {getattr(self, name)}: {self.method} merges nothing; leave it out")
        if self.lr_floor > self.lr:
            raise ValueError(f"--lr-floor {self.lr_floor}: expected at most --lr {self.lr}")
        if self.send_averaged and not self.average_weights:
            raise ValueError("--send-averaged true: needs --average-weights, for example 0.8")
        if isinstance(self.lanes, int) and self.lanes < 1:
            raise ValueError(f"--lanes {self.lanes}: expected auto or a number of at least 1")
        device, _, number = self.device.partition(":")
        if device not in ("auto", "cpu", "cuda") or (number and (device != "cuda" or not number.isdigit())):
            raise ValueError(f"--device {self.device}: expected auto, cpu, cuda or cuda:N")
        if self.image_size is not None and not source_of(self.data).resizable:
            raise ValueError(f"--image-size {self.image_size}: only for your own images; {self.data} has its own size")
        if self.partition == "file" and self.partition_file is None:
            raise ValueError("--partition file: needs --partition-file")
        return self

    @property
    def method_type(self) -> type[Method]:
        """The method's class, ours or a plugin's, with what is asked of it after the last round."""
        plain = all_methods(self.plugin)[self.method]
        return with_ccvr(plain, self.ccvr, self.ccvr_samples)  # type: ignore[arg-type]  # classes are hashable

    def config(self) -> Given:
        """Every resolved value, as config.json holds it; Experiment(**config) gives it back."""
        values = self.model_dump(mode="json", exclude={"options"})
        return {**values, self.method: self.options.model_dump(mode="json")}


def flag(path: str) -> str:
    """The flag of a field: fedproc.pass_mode -> --fedproc.pass-mode."""
    return "--" + path.replace("_", "-")


def _named(field: str, value: Any, allowed: Mapping[str, Any]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{flag(field)} {value}: expected {_one_of(list(allowed))}")
    return value


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0  # reported under its own name when the field is checked


def _clients(given: Given) -> float:
    """How many clients there are, which a partition file says."""
    if given.get("partition") == "file" and given.get("partition_file") is not None:
        return clients_in_file(Path(given["partition_file"]))
    return _number(given.get("clients", 10))


def _options(method: str, kind: type[Method], preset: Given, given: Any) -> Options:
    if isinstance(given, Options):
        return given
    if not isinstance(given, dict):
        raise ValueError(f"{method} {given}: expected a table of options")
    values = {key.replace("-", "_"): value for key, value in given.items() if value is not None}
    try:
        return kind.options_type(**{**preset, **values})
    except ValidationError as error:
        raise ValueError(_sentence(error, method)) from None


def _sentence(error: ValidationError, prefix: str = "") -> str:
    """The first complaint as one sentence: the flag, the value, what is allowed."""
    complaints = error.errors()
    first = complaints[0]
    if not first["loc"]:
        cause = first.get("ctx", {}).get("error")
        text = with_flags(cause) if isinstance(cause, Exception) else first["msg"]
        return f"--{prefix}: {text}" if prefix and not text.startswith("--") else text
    path = ".".join(str(part) for part in ([prefix] if prefix else []) + list(first["loc"][:1]))
    if first["type"] == "extra_forbidden":
        return f"{flag(path)}: no such option; `fedproc run --help` lists them all"
    same = [c for c in complaints if c["loc"][:1] == first["loc"][:1]]  # a union complains once per member
    allowed = [_allowed(c["type"], c.get("ctx", {}), c["msg"]) for c in same]
    return f"{flag(path)} {first['input']}: {' or '.join(allowed).replace(' or expected', ' or')}"


def _allowed(kind: str, context: dict[str, Any], message: str) -> str:
    if "expected" in context:
        return f"expected {context['expected']}"
    words = {
        "greater_than": "a number above {gt:.10g}",
        "greater_than_equal": "at least {ge:.10g}",
        "less_than": "a number below {lt:.10g}",
        "less_than_equal": "at most {le:.10g}",
        "int_parsing": "a whole number",
        "int_from_float": "a whole number",
        "int_type": "a whole number",
        "float_parsing": "a number",
        "float_type": "a number",
        "finite_number": "a finite number",
        "bool_parsing": "true or false",
        "bool_type": "true or false",
        "string_type": "a word",
    }
    return f"expected {words[kind].format(**context)}" if kind in words else message[:1].lower() + message[1:]


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
