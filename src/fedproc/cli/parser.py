"""Flags, made from the Experiment's fields and the methods' options."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from fedproc.experiment import Experiment
from fedproc.given import flag
from fedproc.methods import METHODS
from fedproc.methods.method import Method
from fedproc.methods.robust import ROBUST, Robust
from fedproc.privacy.options import PrivacyOptions

SEPARATOR = "."
COMMON = (
    ("method", ("method", "plugin", "preset")),
    ("data", ("data", "data_dir", "image_size", "fit", "test_fraction", "skip_unreadable")),
    ("partition", ("clients", "partition", "beta", "classes_per_client", "partition_file", "min_size", "val_fraction")),
    ("training", ("rounds", "epochs", "batch_size", "lr", "lr_schedule", "lr_floor")),
    ("optimizer", ("optimizer", "momentum", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")),
    ("more training", ("sample", "augment", "class_weights", "normalize", "calibrate", "calibrate_prototypes")),
    ("privacy", ("smallest_class",)),
    ("server", ("merge", "server_step", "server_beta", "server_lr", "average_weights", "send_averaged")),
    ("hostile clients, for experiments", ("attack", "attackers", "attack_strength")),
    ("after the last round", ("ccvr", "ccvr_samples")),
    ("network", ("network", "width", "norm", "normalize_z", "encoder_weights", "start_from")),
    ("seeds", ("seed", "data_seed", "model_seed")),
    ("running", ("eval_every", "target_accuracy", "keep", "patience", "checkpoint_every", "client_memory")),
    ("files", ("keep_clients", "predictions")),
    ("machine", ("dtype", "precision", "device", "executor", "lanes")),
)


def add_experiment_flags(
    parser: argparse.ArgumentParser, without: tuple[str, ...] = (), methods: Mapping[str, type[Method]] = METHODS
) -> None:
    """A flag for every field of the Experiment, and for every option of every merge and method."""
    for title, names in COMMON:
        group = parser.add_argument_group(title)
        for name in names:
            if name not in without:
                _add(group, name, Experiment.model_fields[name])
    if "privacy" not in without:
        group = parser.add_argument_group("differential privacy", "of clients: docs/privacy.md")
        for name, field in PrivacyOptions.model_fields.items():
            _add(group, f"privacy{SEPARATOR}{name}", field)
    tables: dict[str, type[Method] | type[Robust]] = {**ROBUST, **methods}
    for title, kind in tables.items():
        if kind.options_type.model_fields:
            group = parser.add_argument_group(f"options of {title}")
            for name, field in kind.options_type.model_fields.items():
                _add(group, f"{title}{SEPARATOR}{name}", field)


def _add(group: Any, path: str, field: FieldInfo) -> None:
    allowed = field.examples or _choices(field.annotation)
    words = [field.description or ""]
    if allowed:
        words.append(f"one of: {', '.join(map(str, allowed))}")
    if field.default not in (None, ()) and "follows" not in words[0]:
        words.append(f"default: {_shown(field.default)}")
    text = "; ".join(words).replace("%", "%%")
    more: dict[str, Any] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
    if path == "plugin":
        more = {"action": "append", "type": Path}
    group.add_argument(flag(path), dest=path, metavar=_metavar(field.annotation), default=None, help=text, **more)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if annotation is bool:
        return ("true", "false")
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _metavar(annotation: Any) -> str:
    members = {m for m in (get_args(annotation) or (annotation,)) if isinstance(m, type)}
    if Path in members:
        return "PATH"
    if float in members:
        return "NUMBER"
    if int in members and bool not in members:
        return "N"
    return "WORD"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def given(parsed: argparse.Namespace) -> dict[str, Any]:
    """The Experiment's fields that were given, with one table of options per method."""
    values: dict[str, Any] = {}
    for path, value in vars(parsed).items():
        method, separator, option = path.partition(SEPARATOR)
        if value is None:
            continue
        if separator:
            values.setdefault(method, {})[option] = value
        elif path in Experiment.model_fields:
            values[path] = value
    return values
