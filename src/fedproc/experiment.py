"""The Experiment: one typed, validated tree that says everything a run depends on.

Its fields are the flags of the command line and the keys of a TOML file. What is not given follows the
preset, then the data set; every value is resolved when the object is made.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from fedproc import optimizers
from fedproc.attacks import ATTACKS
from fedproc.data import SOURCES, source_of
from fedproc.data.augment import AUGMENTATIONS
from fedproc.data.partition import PARTITIONS
from fedproc.data.pictures import Fit
from fedproc.errors import InputError, meant
from fedproc.following import clients, following
from fedproc.given import Given, flag, gathered, named, no_truth, number, one_of, sentence
from fedproc.methods import METHODS
from fedproc.methods.ccvr import Recalibration, with_ccvr
from fedproc.methods.checked_server import reason_of
from fedproc.methods.class_weights import Weighting, with_class_weights
from fedproc.methods.merges import MERGES, NEEDS_SGD
from fedproc.methods.method import Method, Options
from fedproc.methods.own import with_own
from fedproc.methods.plugin import all_methods
from fedproc.methods.robust import ROBUST, Robust
from fedproc.methods.server_steps import SERVER_STEPS
from fedproc.networks import NETWORKS
from fedproc.objects import Own
from fedproc.presets import PRESETS, of_method, usual
from fedproc.privacy.allowed import objection
from fedproc.privacy.options import PrivacyOptions, options_of
from fedproc.protocol.plan import Keep

CHOICES: dict[str, dict[str, Any]] = {
    "partition": PARTITIONS,
    "merge": {**MERGES, **ROBUST},
    "attack": ATTACKS,
    "server_step": SERVER_STEPS,
}

# What follows the optimizer.
OF_OPTIMIZER: dict[str, Given] = {
    "adam": {"lr": 0.001, "momentum": 0.0},
    "adamw": {"lr": 0.001, "momentum": 0.0, "weight_decay": 0.01},
}
ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")

NORMALIZED_FROM = 0.1  # the learning rate at which raw z was seen to collapse

# Recorded, but a run may be continued with other values: they change speed, not the experiment.
FREE = frozenset(
    {
        "plugin",
        "partition_file",
        "encoder_weights",
        "start_from",
        "predictions",
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
IMPLIED = frozenset({"preset", "seed", "data", "image_size", "test_fraction", "skip_unreadable"})


class Experiment(BaseModel):
    """One federated training run. Options of a method are a table under its name (`fedproc={"tau": 0.2}`), or have the
    names that their flags have (`**{"fedproc.tau": 0.2}`). `method` may be a class and `network` an `nn.Module`, its
    class, or a function that makes one: what a run folder records of them is their name and their source's SHA-256.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    method: str = Field("fedproc", description="what to run", examples=list(METHODS))
    plugin: tuple[Path, ...] = Field((), description="Python file with methods of your own; can be given again")
    preset: str = Field(
        "paper",
        description="named set of defaults (follows the data: paper, for your own images tuned)",
        examples=list(PRESETS),
    )
    data: str = Field("fashion-mini", description="data set by name, or the path of your own image folder or CSV file")
    data_dir: Path | None = Field(None, description="folder that holds the data set's files; never downloads then")
    image_size: int | None = Field(
        None, ge=16, le=1024, description="side of the squares that your own images become (default: theirs, or 32)"
    )
    fit: Fit = Field(
        "crop",
        description="how your own images become squares: whole with black beside them, out of proportion, or their "
        "middle alone (follows the data set: your own images pad, others crop)",
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="test share of your own images, of each site, where they name no test images"
    )
    skip_unreadable: bool = Field(False, description="leave out image files that cannot be read; split.csv names them")
    clients: int = Field(10, ge=1, description="number of clients m")
    partition: str = Field(
        "dirichlet",
        description="how the data is dealt out (follows the data: dirichlet, where they name sites natural)",
        examples=list(PARTITIONS),
    )
    beta: float = Field(0.5, gt=0, description="Dirichlet concentration; smaller is more skewed")
    classes_per_client: int = Field(2, ge=1, description="classes a client holds under --partition shards")
    partition_file: Path | None = Field(None, description="JSON of indices, one list per client, for --partition file")
    min_size: int = Field(10, ge=1, description="fewest samples a client may hold")
    val_fraction: float = Field(
        0.0, ge=0, lt=1, description="validation share of each client; above 0 the test set is not touched"
    )
    rounds: int = Field(100, ge=1, description="communication rounds T")
    epochs: int = Field(
        10, ge=1, description="local epochs E per round (follows the data: 10, of few images of your own more)"
    )
    batch_size: int = Field(
        64, ge=1, description="batch size B (follows the data: 64, of few images of your own 8 to 32)"
    )
    lr_schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the learning rate falls over the rounds"
    )
    lr_floor: float = Field(0.0, ge=0, description="what the learning rate falls to")
    lr: float = Field(
        0.01, gt=0, description="learning rate (follows the data set: 0.01, cifar100 0.1; adam and adamw 0.001)"
    )
    optimizer: optimizers.Name = Field("sgd", description="how clients train; it begins anew each round")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of --optimizer sgd")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="how much Adam's mean of gradients keeps of a step")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="how much Adam's mean of their squares keeps of a step")
    adam_epsilon: float = Field(1e-8, gt=0, description="what Adam adds to the root of that mean")
    weight_decay: float = Field(
        1e-5, ge=0, description="weight decay of the clients (follows the optimizer: 1e-5, adamw 0.01)"
    )
    class_weights: Weighting = Field(
        "none",
        description="in the cross-entropy a class counts by 1/its images: at all clients together (balanced), which "
        "they tell before the first round, or at each client alone (own)",
    )
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
        None,
        description="how clients' weights become one (default: the method's); from median on, prototypes and what else "
        "is averaged, too: hostile clients cannot turn it",
        examples=[*MERGES, *ROBUST],
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
    start_from: Path | None = Field(
        None, description="model file of a run, or the run's folder, whose weights the whole network starts from"
    )
    width: int = Field(64, ge=1, description="channels of a ResNet's first stage")
    normalize_z: bool = Field(
        False, description=f"classify the L2-normalised z (follows --lr: true from {NORMALIZED_FROM} on)"
    )
    augment: str = Field(
        "none",
        description="random changes of training images, several joined by commas as flip,colour (follows the data "
        "set: none, cifar10 crop-flip, cifar100 crop-flip-rotate)",
        examples=list(AUGMENTATIONS),
    )
    normalize: Literal["known", "measured"] = Field(
        "known", description="mean and deviation of pixels: the data set's known ones, or of the training images"
    )
    smallest_class: int = Field(
        1, ge=1, description="fewest images of a class of which a client sends a prototype and a count"
    )
    attack: str | None = Field(
        None, description="what hostile clients do, for experiments in the simulator", examples=list(ATTACKS)
    )
    attackers: float | None = Field(None, gt=0, lt=1, description="share of the clients that is hostile")
    attack_strength: float | None = Field(
        None, gt=0, description="how strongly (follows --attack: sign-flip 1; scaling, noise, prototype-poisoning 10)"
    )
    privacy: PrivacyOptions | None = Field(None, description="differential privacy of clients")
    seed: int = Field(0, ge=0, lt=2**32, description="sets data seed and model seed")
    data_seed: int = Field(0, ge=0, lt=2**32, description="seed of partition and splits (follows --seed)")
    model_seed: int = Field(0, ge=0, lt=2**32, description="seed of everything else (follows --seed)")
    eval_every: int = Field(1, ge=1, description="evaluate every k rounds, and always after the last")
    keep: Keep = Field(
        "last",
        description="the run's model: the last round's, or the best by validation, tested once at the end",
    )
    patience: int | None = Field(
        None, ge=1, description="end the run after so many rounds without a better validation accuracy"
    )
    predictions: Literal["none", "held-out", "test"] = Field(
        "none",
        description="what the model says of each held-out image, in predictions.csv; beside validation images `test` "
        "adds test-predictions.csv (follows the data: held-out where they name sites)",
    )
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
        description="of products: all bits of float32, tf32 on a GPU, or bf16 (auto: fp32 on a CPU, tf32 on a GPU, "
        "bf16 in its streamed lanes)",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    executor: Literal["auto", "serial", "stacked", "streamed"] = Field(
        "auto",
        description="clients one by one on each core, stacked along an axis of every tensor, or on parallel streams "
        "of a GPU (auto: by device and network)",
    )
    lanes: int | Literal["auto"] = Field("auto", description="clients side by side, a number or auto")
    options: SerializeAsAny[Options] = Field(default_factory=Options, description="options of the method")
    merge_options: SerializeAsAny[Options] = Field(default_factory=Options, description="options of the merge")

    _own: Own = PrivateAttr(default_factory=Own)

    def __init__(self, own: Own | None = None, /, **values: Any) -> None:
        own, values = (own or Own()).taken(values)
        try:
            self.__pydantic_validator__.validate_python(values, self_instance=self, context=own)
        except ValidationError as error:
            raise InputError(sentence(error, [*type(self).model_fields, *METHODS, *ROBUST])) from None

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, values: Any, info: ValidationInfo) -> Given:
        """Precedence: given, preset, data set, and the plain defaults last."""
        given = gathered({key.replace("-", "_"): value for key, value in dict(values).items() if value is not None})
        no_truth(cls.model_fields, given)
        plugins = given.get("plugin", ())
        start = given.get("start_from")
        if isinstance(start, (str, Path)) and Path(start).is_dir():
            given["start_from"] = Path(start) / "model.safetensors"
        plugins = [plugins] if isinstance(plugins, (str, Path)) else plugins
        if not isinstance(plugins, list | tuple) or not all(isinstance(path, (str, Path)) for path in plugins):
            raise ValueError(f"--plugin {plugins}: expected the names of Python files")
        given["plugin"] = tuple(map(Path, plugins))
        own = info.context.methods if isinstance(info.context, Own) else ()
        methods = with_own(all_methods(given["plugin"]), own)
        for name in set(methods) - set(METHODS):
            if name in ROBUST or name.replace("-", "_") in cls.model_fields:
                what = "a merge" if name in ROBUST else "an option"
                raise ValueError(f"--plugin: its method {name} has the name of {what}; choose another")
        given["privacy"] = privacy = options_of(given.get("privacy", {}))
        by_method = {name: given.pop(name.replace("-", "_"), {}) for name in methods}
        by_merge = {name: given.pop(name.replace("-", "_"), {}) for name in ROBUST}
        method = named("method", given.get("method", "fedproc"), methods)
        own_images = str(given.get("data", "fashion-mini")) not in SOURCES
        given["preset"] = named("preset", given.get("preset", usual(own_images)), PRESETS)
        weighted = given.get("class_weights", "none") != "none"  # calibration beside it would correct twice
        preset = of_method(given["preset"], methods[method].federated and not weighted)
        for name, allowed in CHOICES.items():
            if name in given:
                named(name, given[name], allowed)
        if "augment" in given:
            given["augment"] = _augment(given["augment"])
        if "attack" in given and (usual_strength := ATTACKS[given["attack"]].strength) is not None:
            given.setdefault("attack_strength", usual_strength)
        source = source_of(str(given.get("data", "fashion-mini")))
        followed: Given = {"network": source.network, "lr": source.lr, "augment": source.augment, "fit": source.fit}
        followed |= following(given, cls.model_fields["epochs"].default) if own_images else {}
        optimizer = given.get("optimizer", preset.get("optimizer", "sgd"))
        followed |= OF_OPTIMIZER.get(optimizer, {}) if isinstance(optimizer, str) else {}
        merged = {**followed, **{k: v for k, v in preset.items() if k not in methods}, **given}
        merged.setdefault("data_seed", merged.get("seed", 0))
        merged.setdefault("model_seed", merged.get("seed", 0))
        merged.setdefault("normalize_z", number(merged["lr"]) >= NORMALIZED_FROM)
        if "options" not in merged:
            below: dict[str, Given] = {**source.options(clients(merged))}
            if own_images:  # as many epochs alone as together
                rounds, epochs = (merged.get(name, cls.model_fields[name].default) for name in ("rounds", "epochs"))
                below["solo"] = {"epochs": max(1, int(number(rounds) * number(epochs))), "start": "same"}
            made = {
                name: _options(
                    name, kind,
                    {
                        **below.get(name, {}), **preset.get(name, {}),
                        **(kind.private_options if privacy is not None else {}),
                    },
                    by_method[name],
                )
                for name, kind in methods.items()
            }  # fmt: skip
            merged["options"] = made[method]
        if "merge_options" not in merged:
            made_too = {name: _options(name, kind, {}, by_merge[name]) for name, kind in ROBUST.items()}
            merged["merge_options"] = made_too.get(merged.get("merge") or methods[method].merge, Options())
        return merged

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Experiment:
        if isinstance(info.context, Own):
            self._own = info.context
        if ":" not in self.network:
            named("network", self.network, NETWORKS)
        for name in ("merge", "server_step"):
            own = getattr(self.method_type, name)
            if own not in CHOICES[name]:
                raise ValueError(f"--method {self.method}: its {name} {own}: expected {one_of(list(CHOICES[name]))}")
        if not self.method_type.federated:
            for name in ("merge", "server_step", "attack"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{flag(name)} {getattr(self, name)}: {self.method} merges nothing; leave it out")
        self._optimizer_fits()
        self._hostility_fits()
        if self.lr_floor > self.lr:
            raise ValueError(f"--lr-floor {self.lr_floor}: expected at most --lr {self.lr}")
        if self.send_averaged and not self.average_weights:
            raise ValueError("--send-averaged true: needs --average-weights, for example 0.8")
        if isinstance(self.lanes, int) and self.lanes < 1:
            raise ValueError(f"--lanes {self.lanes}: expected auto or a number of at least 1")
        device, _, number = self.device.partition(":")
        if device not in ("auto", "cpu", "cuda") or (number and (device != "cuda" or not number.isdigit())):
            hint = meant(self.device, ("auto", "cpu", "cuda"))
            raise ValueError(f"--device {self.device}: expected auto, cpu, cuda or cuda:N{hint}")
        if self.image_size is not None and not source_of(self.data).resizable:
            raise ValueError(f"--image-size {self.image_size}: only for your own images; {self.data} has its own size")
        for name, unset in (("keep", "last"), ("patience", None)):
            value = getattr(self, name)
            if value != unset and not self.val_fraction:
                raise ValueError(f"{flag(name)} {value}: goes by validation; needs --val-fraction, for example 0.1")
            if value != unset and self.ccvr != "none":
                raise ValueError(f"{flag(name)} {value}: not together with --ccvr {self.ccvr}; leave one out")
        for name, plain in (("fit", "crop"), ("skip_unreadable", False)):
            if self.data in SOURCES and getattr(self, name) != plain:
                given = str(getattr(self, name)).lower()
                raise ValueError(f"{flag(name)} {given}: only for your own images; {self.data} is read as it is")
        if self.partition == "file" and self.partition_file is None:
            raise ValueError("--partition file: needs --partition-file")
        if self.privacy is not None:
            self._private_fits()
        return self

    def _private_fits(self) -> None:
        """Refuse what a private run would tell of clients unprotected."""
        how = f"a private run (--privacy.{'epsilon' if self.privacy and self.privacy.epsilon else 'noise'})"
        reason = objection(self.method_type, self.options, self.merge or self.method_type.merge)
        if reason is not None:
            raise ValueError(f"--method {self.method}: not for {how}: {reason}")
        for name, plain, why in (
            ("attack", None, "hostile clients do not clip what they send; try one at a time"),
            ("ccvr", "none", "it asks clients for means and covariances, which are not protected"),
            ("val_fraction", 0.0, "validation images are the clients' own; test images are the server's"),
            ("keep_clients", False, "it saves what each client trained"),
            ("normalize", "known", "mean and deviation of the clients' images are not protected; take known"),
        ):
            if (value := getattr(self, name)) != plain:
                raise ValueError(f"{flag(name)} {str(value).lower()}: not for {how}: {why}")
        if self.class_weights == "balanced":
            raise ValueError(
                f"--class-weights balanced: not for {how}: clients would tell their class counts; take own"
            )

    def _optimizer_fits(self) -> None:
        """Refuse numbers of another optimizer, and what is defined for SGD alone."""
        if self.optimizer == "sgd":
            for name in ADAM:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{flag(name)} {getattr(self, name)}: needs --optimizer adam or adamw")
            return
        if self.momentum:
            raise ValueError(
                f"--momentum {self.momentum}: has no effect with --optimizer {self.optimizer}, which has "
                "--adam-beta1 in its place; leave it out"
            )
        merge = self.merge or self.method_type.merge
        reasons = (
            (f"--method {self.method}", reason_of(self.method_type, "needs_sgd", self.options)),
            (f"--merge {merge}" if self.merge else f"--method {self.method}", NEEDS_SGD.get(merge)),
        )
        for what, reason in reasons:
            if reason is not None:
                raise ValueError(f"--optimizer {self.optimizer}: {what} needs sgd: {reason}")

    def _hostility_fits(self) -> None:
        """Refuse a robust merge of a method that needs the mean, and an attack that is half said."""
        rule = self.rule
        if rule is not None and (reason := reason_of(self.method_type, "needs_mean", self.options)) is not None:
            raise ValueError(f"--merge {rule.name}: --method {self.method} takes no robust merge: {reason}")
        if self.attack is None:
            for name in ("attackers", "attack_strength"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{flag(name)} {getattr(self, name)}: needs --attack, for example sign-flip")
            return
        if self.attackers is None:
            raise ValueError(f"--attack {self.attack}: needs --attackers, for example 0.2")
        if self.attack_strength is not None and ATTACKS[self.attack].strength is None:
            raise ValueError(f"--attack-strength {self.attack_strength}: {self.attack} has none; leave it out")

    @property
    def rule(self) -> Robust | None:
        """The robust merge, if it is one."""
        kind = ROBUST.get(self.merge or self.method_type.merge)
        return None if kind is None else kind(self.merge_options)

    @property
    def own(self) -> Own:
        """What was given as objects."""
        return self._own

    @property
    def method_type(self) -> type[Method]:
        """The method's class, ours or one's own, with the weights of classes and what is asked after the last round."""
        found = with_own(all_methods(self.plugin), self.own.methods)[self.method]
        plain = with_class_weights(found, self.class_weights)  # type: ignore[arg-type]
        return with_ccvr(plain, self.ccvr, self.ccvr_samples)  # type: ignore[arg-type]  # classes are hashable

    def config(self) -> Given:
        """Every resolved value, as config.json holds it; Experiment(**config) gives it back, with `own` beside it where
        something was given as an object.
        """
        values = self.model_dump(mode="json", exclude={"options", "merge_options"})
        merge = self.merge_options.model_dump(mode="json")
        of_merge = {self.merge or self.method_type.merge: merge} if merge else {}
        return {**values, **of_merge, self.method: self.options.model_dump(mode="json")}


def _augment(names: Any) -> str:
    """Names of augmentations in one order, so that the same ones are the same experiment."""
    asked = names if isinstance(names, (list, tuple)) and names else [names]
    asked = [part.strip() for name in asked for part in (name.split(",") if isinstance(name, str) else [str(name)])]
    for name in asked:
        if name not in AUGMENTATIONS:
            allowed = f"expected {one_of(list(AUGMENTATIONS))}, or several of them joined by commas"
            raise ValueError(f"--augment {name}: {allowed}{meant(name, AUGMENTATIONS)}")
    if "none" in asked and len(asked) > 1:
        raise ValueError(f"--augment {','.join(asked)}: none is with nothing beside it; leave it out")
    return ",".join(name for name in AUGMENTATIONS if name in asked)


def _options(method: str, kind: type[Method] | type[Robust], preset: Given, given: Any) -> Options:
    if isinstance(given, Options):
        return given
    if not isinstance(given, dict):
        raise ValueError(f"{method} {given}: expected a table of options")
    values = {key.replace("-", "_"): value for key, value in given.items() if value is not None}
    no_truth(kind.options_type.model_fields, values, f"{method}.")
    try:
        return kind.options_type(**{**preset, **values})
    except ValidationError as error:
        raise ValueError(sentence(error, kind.options_type.model_fields, method)) from None
